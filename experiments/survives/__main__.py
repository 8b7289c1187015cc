"""Which findings about the embedded model hold on a pretrained one: `python -m experiments.survives`.

Each program that measured a finding measures it again on the pretrained model; then every number is read from both models'
tables and held against the same bound. A program whose folder has a page is not run again.
"""

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from experiments.shared.run_program import run_program
from experiments.shared.tables import Tables
from experiments.survives.judged import Finding, judged
from experiments.survives.page import write_survives
from oar.command_line.entry import entry
from oar.command_line.overrides import quoted
from oar.common.errors import ConfigError
from oar.common.provenance import ROOT, collect_provenance, git_state
from oar.config import validated

PAGE_THERE = "provenance.json"


@dataclass
class SurvivesConfig:
    """The keys are explained in conf/survives.yaml."""

    name: str
    model: str
    embedded: str
    programs: dict[str, list[str]]
    findings: dict[str, Finding]
    output_dir: str

    def __post_init__(self) -> None:
        if not self.findings:
            raise ConfigError("findings must hold one at least, but is empty.")
        for name, program in self.programs.items():
            if not program or not program[0].startswith("experiments."):
                raise ConfigError(f"programs.{name} must start with a module of experiments, but is {program}.")


@entry
def main(config: DictConfig) -> None:
    """Measure what is missing, judge every finding, write the page."""
    cfg, started, git = validated(config, SurvivesConfig), datetime.now(UTC), git_state(ROOT)
    folder = Path(HydraConfig.get().runtime.output_dir)
    here, there = Tables(Path(cfg.embedded)), Tables(folder)
    for finding in cfg.findings.values():
        here.estimate(**finding.where)  # a number that is not there is told now, not after hours of programs
    for number, (name, program) in enumerate(cfg.programs.items(), start=1):
        own = folder / name
        if (own / PAGE_THERE).is_file():
            print(f"{number}/{len(cfg.programs)} {name}: measured", flush=True)
            continue
        print(f"{number}/{len(cfg.programs)} {name}: {' '.join(program)}", flush=True)
        run_program([*program, f"output_dir={quoted(own)}"])
    page = write_survives(
        cfg.name,
        judged(cfg.findings, here, there),
        folder,
        model=cfg.model,
        embedded=Path(cfg.embedded),
        programs=cfg.programs,
        provenance=collect_provenance(asdict(cfg), started=started, git=git),
    )
    print(page.read_text())
    print(f"written to {folder}: {cfg.name}.md, {cfg.name}.csv, {cfg.name}.png, provenance.json")


if __name__ == "__main__":
    main()
