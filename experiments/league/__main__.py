"""A line for every credit signal, and one for yours: `python -m experiments.league signal=mine --config-dir my_conf`.

The committed tables hold what others were measured at; what `signal` lacks is measured here by the same programs, each of which
keeps what it has finished.
"""

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from experiments.league.table import KNOWN, REFERENCE, REGIMES, by_ways, league_table, read_tables
from experiments.shared.committed import committed
from experiments.shared.run_program import run_program
from oar.analysis.reports.page import write_csv, write_page
from oar.command_line.entry import entry
from oar.command_line.overrides import quoted
from oar.common.errors import ConfigError
from oar.common.provenance import ROOT, collect_provenance, git_state
from oar.config import validated
from oar.config.checks import Positive
from oar.config.composed import composed_run
from oar.learner.credit import Method
from oar.method.importance import needs_continuations
from oar.method.importance.base import context_of

TEMPLATE = Path(__file__).with_name("page.md.j2")
FILES = {"signals": "method_signals.csv", "gradients": "sheet_gradients.csv", "costs": "steps.csv"}
EXACT, TARGET = "oar_p", "oracle_signed"  # what signals are held against, and whose gradients are exact


@dataclass
class LeagueConfig:
    """The keys are explained in conf/league.yaml."""

    signal: str | None
    allow_targets: list[str]
    tables: dict[str, list[str]]
    completions_of: str
    batch: Positive
    seed: int
    problems: Positive
    units: Positive
    seeds: Positive
    rate: float
    steps: Positive
    reference_steps: Positive
    output_dir: str

    def __post_init__(self) -> None:
        if set(self.tables) != set(KNOWN):
            raise ConfigError(f"tables must have {', '.join(KNOWN)}, but has {', '.join(self.tables)}.")


@entry
def main(config: DictConfig) -> None:
    """Measure what is asked for, read all tables, write the page."""
    cfg, started, git = validated(config, LeagueConfig), datetime.now(UTC), git_state(ROOT)
    folder = Path(HydraConfig.get().runtime.output_dir)
    there = {name: [committed(file) for file in files] for name, files in cfg.tables.items()}
    tables = [read_tables(there, but=cfg.signal)]
    if cfg.signal is not None:
        tables.append(read_tables(measured(cfg, cfg.signal, folder / cfg.signal), only=cfg.signal))
    table = league_table(tables, model=cfg.completions_of, batch=cfg.batch)
    write_csv(table, folder / "league.csv")
    several, one = by_ways(table)
    page = write_page(
        folder / "league.md",
        TEMPLATE,
        collect_provenance(asdict(cfg), started=started, git=git),
        groups={
            "Looked at in several ways": several.to_dict("records"),
            "Looked at in one way": one.to_dict("records"),
        },
        regimes=REGIMES,
        league=cfg,
    )
    print(page.read_text())
    print(f"written to {folder}: league.md, league.csv, provenance.json")


def chosen(cfg: LeagueConfig, method: str) -> list[str]:
    """The overrides of conf/train that make the method."""
    return [f"method={method}", *([f"allow_targets=[{','.join(cfg.allow_targets)}]"] if cfg.allow_targets else [])]


def programs(cfg: LeagueConfig, method: str) -> dict[str, list[str]]:
    """By table the program that measures `method` for it, with its overrides; what asks the engine or learns is trained alone.

    Raises ConfigError where there is no such method.
    """
    parts = Method.built(composed_run(chosen(cfg, method)))
    alone = needs_continuations(parts.signal) or parts.tree is not None or parts.learned is not None
    arms = {TARGET: ["method=oracle_signed"], REFERENCE: ["method=grpo"], method: chosen(cfg, method)}
    runs = {
        REFERENCE: ["method=grpo", f"learner.steps={cfg.reference_steps}"],
        method: [*chosen(cfg, method), f"learner.steps={cfg.steps}"],
    }
    measures = {
        "signals": [
            *("experiments.signals", "experiment=method_signals", "~models.trained", "pairs=[]", f"seed={cfg.seed}"),
            *(f"problems={cfg.problems}", f"++signals.{method}={text(chosen(cfg, method))}"),
            f"shown={text(list(dict.fromkeys([EXACT, 'uniform', method])))}",
        ],
        "gradients": [
            *("experiments.gradient_signal", "experiment=sheet_gradients", "~arms", f"+arms={text(arms)}"),
            *("foretold=null", f"seed={cfg.seed}", f"units={cfg.units}"),
        ],
        "costs": [
            *("experiments.study", "experiment=ceilings", "~arms", f"+arms={text(runs)}", "~arms_of", "+arms_of={}"),
            f"only={text(list(REGIMES))}",
            *(f"seeds={cfg.seeds}", f"rates=[{cfg.rate}]"),
        ],
    }
    if alone:
        return {"costs": measures["costs"]}
    if context_of(parts.signal) is not None:  # sheets have no such look to show
        del measures["gradients"]
    return measures


def measured(cfg: LeagueConfig, method: str, folder: Path) -> dict[str, list[Path]]:
    """The files of `method`'s own tables; what is finished is not measured again. Raises OarError where a program fails."""
    found = {}
    for name, program in programs(cfg, method).items():
        own = [f"output_dir={quoted(folder / name)}", f"work_dir={quoted(folder / 'work')}"]
        print(f"{name}: {program[0]}", flush=True)
        run_program([*program, *own])
        found[name] = [folder / name / FILES[name]]
    return found


def text(value: str | list[str] | dict[str, list[str]]) -> str:
    """As Hydra reads it on a command line."""
    match value:
        case dict():
            return f"{{{', '.join(f'{key}: {text(one)}' for key, one in value.items())}}}"
        case list():
            return f"[{', '.join(map(text, value))}]"
        case _:
            return f"'{value}'"


if __name__ == "__main__":
    main()
