"""Is one model better than the other? Two evaluations of the same problems: `python -m experiments.compare a=FOLDER b=FOLDER`.

Exit code 0: the table, or with `json=true` one JSON object, is printed; 2: the two cannot be compared.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from omegaconf import DictConfig

from oar.command_line.entry import entry
from oar.common.errors import ConfigError
from oar.config import validated
from oar.evaluation.compare import compare, read_evaluation
from oar.statistics.intervals import CONFIDENCE, RESAMPLES


@dataclass
class CompareConfig:
    """See conf/compare.yaml."""

    a: str | None
    b: str | None
    json: bool

    def __post_init__(self) -> None:
        for key in ("a", "b"):
            if not getattr(self, key):
                raise ConfigError(f"{key} must be the folder of an evaluation, but is empty: say {key}=FOLDER.")


@entry
def main(config: DictConfig) -> None:
    """Read both, compare, print."""
    cfg = validated(config, CompareConfig)
    a, b = read_evaluation(Path(str(cfg.a))), read_evaluation(Path(str(cfg.b)))
    frame = compare(a, b)
    print(as_json(cfg, frame) if cfg.json else as_text(cfg, frame))


def as_json(cfg: CompareConfig, frame: pd.DataFrame) -> str:
    """One object, with what was compared."""
    rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
    made = {"a": cfg.a, "b": cfg.b, "confidence": CONFIDENCE, "resamples": RESAMPLES}
    return json.dumps({**made, "results": rows}, indent=2, allow_nan=False)


def as_text(cfg: CompareConfig, frame: pd.DataFrame) -> str:
    """A table and what it means."""
    shown = frame.round(1).astype({"k": object})
    return (
        f"a: {cfg.a}\nb: {cfg.b}\n\n{shown.where(shown.notna(), '').to_string(index=False)}\n\n"
        f"difference: a - b in percentage points, with its {CONFIDENCE:.0%} bootstrap interval over problems (paired); an "
        "interval that holds 0 shows no difference. The spread over training seeds is no part of it."
    )


if __name__ == "__main__":
    main()
