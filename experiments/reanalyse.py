"""Committed results judged anew by the statistics of today, without training: intervals, verdicts, pages and pictures.

What was measured stays as it was, and so does where it came from; `analysis` in provenance.json says what judged it last. Raw
scores of single problems are committed for Table 1 alone; of other pages the ends of the bootstrap that was drawn from them are.
Where the table holds all that there is to say, the pictures alone are drawn anew.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pandas as pd
from omegaconf import DictConfig, OmegaConf

from experiments.bench_importance.page import draw_bench
from experiments.bench_learner.page import draw as draw_bench_learner
from experiments.fidelity.page import draw_fidelity
from experiments.gradient_signal.page import judge_gradients
from experiments.omissions import page as omissions
from experiments.recall import page as recall
from experiments.signals import pictures as signals
from experiments.stability.reanalysis import judge_sweep
from experiments.study.ceilings import STEPS, judge_ceilings
from experiments.study.page import judge_study
from experiments.survives.page import draw_survives
from experiments.table1.page import judge_table1
from oar.analysis.reports.signals import Pictures
from oar.command_line.entry import entry
from oar.common.errors import ConfigError, DataError
from oar.common.provenance import ROOT, command, git_state
from oar.config import validated

# by a file that only it has
KINDS = {
    "table1.csv": judge_table1,
    "levels.csv": judge_sweep,
    "scores.csv": judge_study,
    STEPS: judge_ceilings,
    "batches.png": judge_gradients,
}


@dataclass
class ReanalyseConfig:
    """See conf/reanalyse.yaml."""

    folders: list[str]

    def __post_init__(self) -> None:
        if not self.folders:
            raise ConfigError("folders must name at least one folder of results: folders=[results/table1].")


@entry
def main(config: DictConfig) -> None:
    """Judge folder by folder."""
    cfg = validated(config, ReanalyseConfig)
    analysis = {"command": command(), **git_state(ROOT)}
    for folder in cfg.folders:
        judge(Path(folder), analysis=analysis)
        print(f"judged anew: {folder}", flush=True)


def judge(folder: Path, *, analysis: Mapping[str, object]) -> None:
    """Write anew what follows from the measurements in `folder`.

    `analysis`: what judges, for provenance.json. Raises DataError where the folder holds no table whose statistics are known, or
    does not say what measured it.
    """
    kind = next((of for file, of in KINDS.items() if (folder / file).is_file()), None)
    if kind is not None:
        made = folder / "provenance.json"
        if not made.is_file():
            raise DataError(
                f"{folder} must say what its numbers were measured with, but has no {made.name}: copy it there."
            )
        kind(folder, json.loads(made.read_text(encoding="utf-8")) | {"analysis": dict(analysis)})
        return
    drawn = pictures_of(folder)
    if drawn is None or not (table := table_of(folder, drawn)).is_file():
        raise DataError(f"{folder} must hold one of {', '.join([*KINDS, *pictures()])}, but has none: correct folders.")
    for file, draw in drawn.items():
        draw(pd.read_csv(table), folder / file)


def table_of(folder: Path, drawn: Pictures) -> Path:
    """The table behind the pictures: called as the folder, or where the folder has a name of its own as the first picture."""
    own = folder / f"{folder.resolve().name}.csv"
    return own if own.is_file() else folder / Path(next(iter(drawn))).with_suffix(".csv")


def pictures_of(folder: Path) -> Pictures | None:
    """Those of `pictures` for a folder, which may be called by the one above it as well."""
    known, here = pictures(), folder.resolve()
    return known.get(f"{here.parent.name}/{here.name}", known.get(here.name))


def pictures() -> dict[str, Pictures]:
    """Of results that no statistics of today would change: what draws each picture from the table, by folder."""
    names = ("compared/embedded", "compared/smollm2", "bench_importance")
    fidelity, pretrained, bench = (OmegaConf.load(ROOT / "conf" / f"{name}.yaml") for name in names)
    return {
        "recall": recall.PICTURES,
        **signals.PICTURES,
        **{
            name: {
                "fidelity.png": partial(
                    draw_fidelity, reference=one.reference, lead=tuple(one.pairs[0]), series=one.series
                )
            }
            for name, one in (
                ("fidelity", fidelity),
                ("smollm2/fidelity", pretrained),
                ("smollm2/solutions", pretrained),
            )
        },
        "bench_importance": {"bench_importance.png": partial(draw_bench, faithful=bench.faithful)},
        "omissions": {omissions.PICTURE: omissions.draw_mistakes},
        "bench_learner": {"bench_learner.png": draw_bench_learner},
        "smollm2": {"smollm2.png": draw_survives},
    }


if __name__ == "__main__":
    main()
