"""Oracle recall: every token signal against the tokens that are known to matter, `python -m experiments.recall`.

Train a model where none is given, draw completions of each model, compute every signal on them, compare with the oracle.
What is finished is kept (experiments/shared/subjects.py), so the command can be interrupted and run again.
"""

from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from omegaconf import DictConfig
from torch import Tensor

from experiments.recall.page import PICTURES, TEMPLATE
from experiments.shared.signal_study import run_study
from experiments.shared.subjects import Plan, SubjectConfig
from oar.analysis.signals.examine import Subject, as_the_gate_sees_it
from oar.analysis.signals.recall import recall_table
from oar.command_line.entry import entry
from oar.common.errors import ConfigError
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

    run_study("recall", plan, measure, TEMPLATE, pictures=PICTURES, run={"reference": cfg.reference})


if __name__ == "__main__":
    main()
