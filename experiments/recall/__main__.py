"""Oracle recall: every token signal against the tokens that are known to matter, `python -m experiments.recall`.

Train a model where none is given, draw completions of each model, compute every signal on them, compare with the oracle.
What is finished is kept (experiments/shared/subjects.py), so the command can be interrupted and run again.
"""

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from torch import Tensor

from experiments.recall.page import PANELS, TEMPLATE, draw_calibration
from experiments.shared.subjects import Plan, SubjectConfig, measure_models
from oar.analysis.reports.signals import write_signals
from oar.analysis.signals.examine import Subject, as_the_gate_sees_it
from oar.analysis.signals.recall import recall_table
from oar.command_line.entry import entry
from oar.common.errors import ConfigError
from oar.common.provenance import ROOT, collect_provenance, git_state
from oar.config import validated


@dataclass
class RecallConfig(SubjectConfig):
    """One measurement of oracle recall; the keys are explained in conf/recall.yaml."""

    k: list[int]
    reference: str

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_signal("reference", self.reference)
        if any(count < 1 for count in self.k):
            raise ConfigError(f"k must hold counts, every entry of k 1 or more, but is {self.k}.")


@entry
def main(config: DictConfig) -> None:
    """Validate everything, do what is missing, write the table and the pictures."""
    cfg = validated(config, RecallConfig)
    started, git = datetime.now(UTC), git_state(ROOT)
    folder = Path(HydraConfig.get().runtime.output_dir)
    plan = Plan.of(cfg)

    def measure(_: Path, subject: Subject, importance: dict[str, Tensor]) -> pd.DataFrame:
        return recall_table(
            {name: as_the_gate_sees_it(subject, values, plan.signals[name]) for name, values in importance.items()},
            subject.truth,
            reference=cfg.reference,
            pairs=cfg.pairs,
            k=cfg.k,
            seed=cfg.seed,
        )

    table, facts = measure_models(plan, "comparison with the oracle", measure)
    provenance = collect_provenance(asdict(cfg), started=started, git=git)
    write_signals(
        "recall",
        TEMPLATE,
        table,
        facts,
        folder,
        panels=PANELS,
        more={"calibration.png": draw_calibration},
        run=plan.description() | {"reference": cfg.reference},
        signals=cfg.signals,
        provenance=provenance | {"training": plan.trained_here()},
    )
    print(f"written to {folder}: recall.csv, recall.md, recall.png, calibration.png, provenance.json")


if __name__ == "__main__":
    main()
