"""Contamination: every training set against every benchmark, `python -m experiments.data_check`.

Exit code 0: no training set holds a copy of a benchmark's problem; 1: one does; 2: something could not be read.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import combinations
from pathlib import Path

import pandas as pd
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from oar.analysis.reports.page import table_lines
from oar.command_line.entry import entry
from oar.common.errors import ConfigError
from oar.common.files import atomic_path, write_text_atomic
from oar.common.provenance import ROOT, collect_provenance, git_state
from oar.config import build, validated
from oar.config.checks import require
from oar.config.composed import composed_run
from oar.tasks.data.contamination import Comparison, Copy, N, Prints, compare
from oar.tasks.data.sources import load_benchmarks
from oar.tasks.problem import ProblemSet

EXIT_CONTAMINATED = 1


@dataclass
class DataCheckConfig:
    """One comparison; the keys are explained in conf/data_check.yaml."""

    train: list[str]
    benchmarks: list[str]
    path: str | None
    train_files: list[str]
    overlap: float
    output_dir: str

    def __post_init__(self) -> None:
        require(0 < self.overlap <= 1, "overlap", "above 0 and at most 1", self.overlap)
        require(bool(self.train or self.train_files), "train", "with train_files at least one set", self.train)
        require(bool(self.benchmarks), "benchmarks", "at least one name of conf/benchmark", self.benchmarks)


@entry
def main(config: DictConfig) -> None:
    """Read everything, compare, write the files, print the table."""
    cfg = validated(config, DataCheckConfig)
    started, git = datetime.now(UTC), git_state(ROOT)
    folder = Path(HydraConfig.get().runtime.output_dir)
    train = [Prints.of(problem_set) for problem_set in training_sets(cfg)]
    benchmarks = [Prints.of(problem_set) for problem_set in benchmark_sets(cfg)]
    found = [compare(one, other, cfg.overlap) for one in train for other in benchmarks]
    among = [compare(one, other, cfg.overlap) for other, one in combinations(benchmarks, 2)]
    table, among_table = as_table(found), as_table(among)
    sets = sets_table([*train, *benchmarks])
    with atomic_path(folder / "data_check.csv") as path:
        pd.concat([table, among_table], ignore_index=True).to_csv(path, index=False)
    with atomic_path(folder / "copies.csv") as path:
        copies_table([*found, *among]).to_csv(path, index=False)
    write_text_atomic(folder / "data_check.md", markdown(sets, table, among_table, cfg.overlap))
    origins = {prints.problem_set.name: prints.problem_set.origin for prints in [*train, *benchmarks]}
    record = collect_provenance(asdict(cfg), started=started, git=git) | {"data": origins}
    write_text_atomic(folder / "provenance.json", json.dumps(record, indent=2, allow_nan=False) + "\n")
    contaminated = [comparison for comparison in found if comparison.copies]
    print(f"{sets.to_string(index=False)}\n\n{table.to_string(index=False)}")
    print(f"\namong benchmarks\n{among_table.to_string(index=False)}\n" if among else "")
    for comparison in contaminated:
        print(f"{comparison.train} holds {len(comparison.copied)} problems of {comparison.benchmark}: see copies.csv")
    print(f"written to {folder}: data_check.csv, data_check.md, copies.csv, provenance.json")
    if contaminated:
        sys.exit(EXIT_CONTAMINATED)


def training_sets(cfg: DataCheckConfig) -> list[ProblemSet]:
    """The training sets in full. Raises ConfigError for one that is generated, or that conf/data does not have."""
    local = {Path(file).stem: file for file in cfg.train_files}
    files = dict.fromkeys(cfg.train, cfg.path) | local
    if len(files) != len(cfg.train) + len(cfg.train_files):
        named = ", ".join([*cfg.train, *cfg.train_files])
        raise ConfigError(f"train and train_files must name sets of different names, but are {named}.")
    found = []
    for name, path in files.items():
        settings = composed_run([f"data={'local' if name in local else name}"]).data.source
        if "dataset" not in settings:
            raise ConfigError(f"train must name data sets, but {name} is generated: nothing in it can be a copy.")
        settings |= {"levels": None, "path": path} | ({"name": name} if name in local else {})
        found.append(build("data.source", settings).problem_set)
    return found


def benchmark_sets(cfg: DataCheckConfig) -> list[ProblemSet]:
    """Every set of the benchmarks, each once. Raises ConfigError for one that is generated, or that there is not."""
    found: dict[str, ProblemSet] = {}
    for name in cfg.benchmarks:
        benchmark = composed_run([f"benchmark={name}"]).benchmark
        if set(benchmark.sets) - set(benchmark.sources):
            raise ConfigError(f"benchmarks must name data sets, but {name} is generated: no training set holds it.")
        benchmark.path = cfg.path
        found |= load_benchmarks(benchmark, "final", None)
    return list(found.values())


def sets_table(sets: Sequence[Prints]) -> pd.DataFrame:
    """What was read: a row per set."""
    return pd.DataFrame(
        {
            "set": prints.problem_set.name,
            "problems": len(prints.texts),
            "repeated": prints.repeated,
            "read from": _origin(prints.problem_set.origin),
        }
        for prints in sets
    )


def _origin(origin: Mapping[str, object]) -> str:
    if "file" in origin:
        return f"{origin['file']}, sha256 {str(origin['sha256'])[:12]}"
    return f"{origin['dataset']} at {str(origin['resolved'])[:12]}"


def as_table(comparisons: Sequence[Comparison]) -> pd.DataFrame:
    """A row per pair."""
    rows = [
        {
            "in": each.train,
            "problems of": each.benchmark,
            "n": each.problems,
            "exact": _copied(each, "exact"),
            "overlap": _copied(each, "overlap"),
            "verdict": f"{len(each.copied)} copied" if each.copies else "clean",
            f"share a {N}-gram": each.sharing,
            "largest overlap": round(each.largest_overlap, 2),
            f"under {N} words": each.too_short,
        }
        for each in comparisons
    ]
    return pd.DataFrame(rows)


def _copied(comparison: Comparison, kind: str) -> int:
    return len({copy.benchmark_id for copy in comparison.copies if copy.kind == kind})


def copies_table(comparisons: Sequence[Comparison]) -> pd.DataFrame:
    """A row per copy."""
    rows = [(each.train, each.benchmark, *copy) for each in comparisons for copy in each.copies]
    return pd.DataFrame(rows, columns=["in", "problems of", *Copy._fields])


def markdown(sets: pd.DataFrame, table: pd.DataFrame, among: pd.DataFrame, overlap: float) -> str:
    """The report."""
    return (
        "# Data check\n\n"
        f"A copy is a problem whose text is the same (case, white space and LaTeX spelling aside), or of whose {N}-grams at "
        f"least {overlap:.0%} stand in one problem with the same answer. Single shared {N}-grams are counted, not judged.\n\n"
        f"## Sets\n\n{_markdown(sets)}\n\n## Benchmarks in training sets\n\n{_markdown(table)}\n"
    ) + (f"\n## Benchmarks in benchmarks\n\n{_markdown(among)}\n" if len(among) else "")


def _markdown(frame: pd.DataFrame) -> str:
    return table_lines(list(frame.columns), frame.astype(str).to_numpy().tolist())


if __name__ == "__main__":
    main()
