"""Where the credit of a run went: to tokens that carry the computation, to first errors, to those of exact OAR-P?

Of the completions that a run kept (samples.jsonl), those whose tokens got unequal credit: |token advantage| is how much a token
counts, whichever way. Of the embedded tasks only, whose tokens are known.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from oar.analysis.signals.kept import KeptStep
from oar.analysis.signals.recall import AUC, ERROR_FIFTH, ERROR_PERCENTILE, SPEARMAN
from oar.common.errors import DataError
from oar.config.composed import composed_run
from oar.config.saved import saved_settings
from oar.learner.checkpoint import CHECKPOINTS, nearest_checkpoint
from oar.learner.samples import Sample, read_samples, read_steps
from oar.model.load import load_policy, load_tokenizer
from oar.runs.folder import Run
from oar.runs.tracking import SAMPLES
from oar.statistics.attribution import Floats, auc, recall_at_top_fifth, spearman
from oar.tasks.task import Task

EQUAL = 1e-4  # of the largest: kept credit has five digits
# quantity: what it is, for a table
QUANTITIES = {
    AUC: "AUC of causal tokens",
    ERROR_FIFTH: "first error in the top fifth",
    ERROR_PERCENTILE: "percentile of the first error",
    SPEARMAN: "rank correlation with exact OAR-P",
}


def placement_table(runs: Sequence[Run]) -> pd.DataFrame:
    """Long: condition, arm, seed, quantity, value, n: the mean over the n kept completions that define it.

    A run whose tokens all got the same credit has no row. SPEARMAN is of the last step that completions were kept of, with
    the importance of exact OAR-P under the run's last checkpoint. Raises DataError where a run kept none of them.
    """
    rows: list[dict[str, Any]] = []
    for run in runs:
        found = pd.DataFrame([*_placed(run), *_agreeing(run)], columns=list(QUANTITIES))
        for quantity, values in found.items():
            if values.notna().any():
                of = {"condition": run.condition, "arm": run.arm, "seed": run.seed, "quantity": quantity}
                rows.append({**of, "value": values.mean(), "n": int(values.notna().sum())})
    return pd.DataFrame(rows, columns=["condition", "arm", "seed", "quantity", "value", "n"])


def causal_auc(run: Run) -> float:
    """How well a run's credit tells causal tokens from others: the mean AUC over the completions it kept; NaN where none says."""
    if not (run.folder / SAMPLES).exists():  # it ended before it kept any, or was to keep none
        return float("nan")
    kept = [sample for samples in read_steps(run.folder).values() for sample in samples if "causal" in sample.marks]
    found = [auc(size, _mark(sample, "causal", size)) for sample, size in _unequal(kept)]
    return float(np.nanmean(found)) if np.isfinite(found).any() else float("nan")


def _placed(run: Run) -> Iterator[Mapping[str, float]]:
    """Of every kept completion with unequal credit what its marks say of it."""
    for samples in read_steps(run.folder).values():
        for sample, size in _unequal(samples):
            error = _mark(sample, "error", size) & (not sample.correct)
            yield {
                AUC: auc(size, _mark(sample, "causal", size)),
                ERROR_FIFTH: recall_at_top_fifth(size, error),
                ERROR_PERCENTILE: auc(size, error),
            }


def _agreeing(run: Run) -> Iterator[Mapping[str, float]]:
    """Of the last step's completions with unequal credit the rank correlation with exact OAR-P."""
    step, samples = read_samples(run.folder, None)
    chosen = list(_unequal(samples))
    if not chosen:
        return
    weights = nearest_checkpoint(run.folder / CHECKPOINTS, step)
    if weights is None:
        raise DataError(f"{run.folder} must keep its last checkpoint for exact OAR-P: set learner.keep_checkpoints=1.")
    settings = saved_settings(run.folder / "config.yaml", list(run.settings.allow_targets))
    task = Task.named(load_tokenizer(weights), settings.model.marker, settings.template)
    kept = KeptStep.read(load_policy(weights, "float32"), task, settings, step, [sample for sample, _ in chosen])
    importance = kept.credit(composed_run(["method=oar_p"]).method).token_importance.numpy()
    for row, (_, size) in enumerate(chosen):
        yield {SPEARMAN: spearman(size, importance[row, : size.size])}


def _unequal(samples: Sequence[Sample]) -> Iterator[tuple[Sample, Floats]]:
    """The completions whose reasoning tokens got unequal credit, with its size (T,)."""
    for sample in samples:
        size = np.abs(sample.advantages[: sample.reasoning_tokens])
        if size.size and np.ptp(size) > EQUAL * size.max():
            yield sample, size


def _mark(sample: Sample, name: str, size: Floats) -> NDArray[np.bool_]:
    if name not in sample.marks:
        raise DataError(
            f"placement=true needs tasks that know their {name} tokens, but {sample.benchmark} does not: set it to false."
        )
    return np.isin(np.arange(size.size), sample.marks[name])
