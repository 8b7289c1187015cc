"""Is one model better than the other? Two evaluations of the same problems: `python -m experiments.compare a=FOLDER b=FOLDER`.

Exit code 0: the table, or with `json=true` one JSON object, is printed; 2: the two cannot be compared.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from omegaconf import DictConfig

from oar.analysis.arms import stacked
from oar.command_line.entry import entry
from oar.common.errors import ConfigError
from oar.config import validated
from oar.evaluation.evaluate import MEAN
from oar.evaluation.graded import Evaluation, check_same, problem_scores, read_evaluation, right_samples
from oar.statistics.accuracy import accuracy
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


def compare(a: Evaluation, b: Evaluation) -> pd.DataFrame:
    """a - b in percentage points, a row per benchmark and metric (avg@k, greedy pass@1) and one for their mean.

    `better` and `worse` count the problems that a solves more and less often. Raises DataError where a and b differ in
    benchmarks, problems, gold answers, the data's revision or how they were sampled, or where samples are missing.
    """
    check_same(a, b)
    problems = right_samples(a)
    rows = []
    for metric, of in problems.groupby("metric", sort=False):
        scores = stacked([[problem_scores(one, str(metric))] for one in (problems, right_samples(b))])
        for name in (*scores, MEAN):
            chosen = scores if name == MEAN else {name: scores[name]}
            ks = of["k"][(of["benchmark"] == name) | (name == MEAN)].unique()
            rows.append({"benchmark": name, "metric": metric, "k": ks[0] if len(ks) == 1 else None, **_row(chosen)})
    return pd.DataFrame(rows).astype({"k": "Int64"})


def _row(scores: Mapping[str, NDArray[np.float64]]) -> dict[str, float]:
    """Of arrays (2, 1, problems): both are taken to be of one training seed, and problems alone are drawn."""
    found = accuracy(scores, by_problem=True)
    gains = np.concatenate([of_a - of_b for (of_a,), (of_b,) in scores.values()])
    difference, ((mean_a, mean_b),) = found.difference(), found.by_seed
    return {
        **{"a": mean_a, "b": mean_b, "difference": difference.value},
        **{"ci_low": difference.low, "ci_high": difference.high},
        **{"n": len(gains), "better": int((gains > 0).sum()), "worse": int((gains < 0).sum())},
    }


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
