"""From what was measured of importance's cost to one table, ten numbers and a few of each method (docs/METHOD.md §7.4, §9).

A case is what experiments/bench_importance/__main__.py keeps, raw: seconds round by round, importance and weights token
by token. Every statistic is made here.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from oar.analysis.signals.agreement import WEIGHTS, agreements
from oar.analysis.signals.recall import OVERLAP, SPEARMAN, averages

COLUMNS = ["part", "size", "length", "method", "metric", "value"]
SYNTHETIC, EMBEDDED, STEPS, METHODS = "synthetic", "embedded", "steps", "methods"  # parts; `embedded` is also a size
GRPO, OAR_G, OAR_GN, EXACT, PLAIN, WINDOW = "grpo", "oar_g", "oar_gn", "oar_p", "plain", "window8"
ONE_BACKWARD = (OAR_G, OAR_GN, "oar_ga")
MIB = 2**20
CORRELATION = "weights_correlation"  # of the gated weights
STAGES = ("generation", "grading", "scoring", "importance", "update", "sync", "total")
Row = tuple[str, str, float, str, str, float]
Seconds = Mapping[str, Mapping[str, Sequence[float]]]
Steps = Mapping[str, Mapping[str, float]]  # by method and stage
OF_METHODS = ("step_ratio", "peak_extra_memory_ratio", "continuation_tokens")


def synthetic_rows(case: Mapping[str, Any]) -> Iterator[Row]:
    """Of one size and length: {size, length, completions, seconds: as `timed_rounds`, memory: by method `measure_memory`}."""
    where = (SYNTHETIC, case["size"], float(case["length"]))
    seconds, memory = case["seconds"], case["memory"]
    for method, metric, value in _second_metrics(seconds, case["completions"]):
        yield *where, method, metric, value
    for method, found in memory.items():
        yield *where, method, "tokens", found["tokens"]
        yield *where, method, "update_peak_mib", found["update_peak"] / MIB
        yield *where, method, "credit_peak_mib", found["credit_peak"] / MIB
        yield *where, method, "memory_ratio", found["credit_peak"] / memory[GRPO]["update_peak"]
        if method in seconds and PLAIN in seconds and method != PLAIN:
            ratio = _paired(seconds[method]["credit"], seconds[PLAIN]["credit"])
            yield *where, method, "over_plain", float(np.median(ratio))
            tokens = {name: memory[name]["tokens"] - memory[GRPO]["tokens"] for name in (method, PLAIN)}
            if method == EXACT:
                yield *where, method, "token_over_plain", float(np.median(ratio)) * tokens[PLAIN] / tokens[EXACT]
        if EXACT in memory:
            importance, weights = ({m: memory[m][key] for m in memory} for key in ("importance", "weights"))
            for metric, value in _fidelity(method, importance, weights):
                yield *where, method, metric, value


def embedded_rows(case: Mapping[str, Any]) -> Iterator[Row]:
    """Of the embedded task: {length, problems, completions, seconds, tokens, importance, weights}, the last four by method."""
    where = (EMBEDDED, EMBEDDED, float(case["length"]))
    for method, metric, value in _second_metrics(case["seconds"], case["completions"]):
        yield *where, method, metric, value
    for method, tokens in case["tokens"].items():
        yield *where, method, "tokens", tokens
        for metric, value in _fidelity(method, case["importance"], case["weights"], case["problems"]):
            yield *where, method, metric, value


def step_rows(rounds: Sequence[Steps], length: float, part: str = STEPS) -> Iterator[Row]:
    """Of whole training steps: by round, method and stage the seconds. The learner does nothing while continuations are drawn."""
    where = (part, EMBEDDED, length)
    rounds = [
        {name: {**one, "total": one["total"] - one.get("continuations", 0.0)} for name, one in steps.items()}
        for steps in rounds
    ]
    for method in rounds[0] if rounds else ():
        for stage in STAGES:
            yield *where, method, f"{stage}_s", float(np.median([one[method][stage] for one in rounds]))
        both = [(one[method], one[GRPO]) for one in rounds]
        ratios = {
            "step_ratio": [ours["total"] / grpo["total"] for ours, grpo in both],
            "learner_ratio": [_without_generation(ours) / _without_generation(grpo) for ours, grpo in both],
        }
        for metric, values in ratios.items():
            yield from ((*where, method, name, value) for name, value in _quartiles(metric, values))


def method_rows(rounds: Sequence[Steps], apart: Mapping[str, Mapping[str, Any]]) -> Iterator[Row]:
    """Of every credit method: `step_rows`, and by method {peak, length, continuation_tokens} of a step by itself."""
    usual, length = apart[GRPO]["peak"], apart[GRPO]["length"]
    yield from step_rows(rounds, length, METHODS)
    for method, found in apart.items():
        metrics = {
            "step_peak_mib": found["peak"] / MIB,
            "peak_extra_mib": (found["peak"] - usual) / MIB,
            "peak_extra_memory_ratio": (found["peak"] - usual) / usual,
            "continuation_tokens": found["continuation_tokens"],
        }
        yield from (
            (METHODS, EMBEDDED, length, method, name, value) for name, value in metrics.items() if value is not None
        )


def tidy(rows: Iterable[Row]) -> pd.DataFrame:
    """The one table that everything else is read off."""
    return pd.DataFrame(list(rows), columns=COLUMNS)


def cheapest_faithful(table: pd.DataFrame, candidates: Sequence[str], bound: float) -> str | None:
    """The candidate of least cost on the embedded task whose Spearman there is at least `bound`; None without one."""
    rows = table[(table["part"] == EMBEDDED) & table["method"].isin(list(candidates))]
    wide = rows.pivot(index="method", columns="metric", values="value")
    faithful = wide[wide[SPEARMAN] >= bound] if len(wide) else wide
    return str(faithful["update_ratio"].idxmin()) if len(faithful) else None


def summary(table: pd.DataFrame, chosen: str | None) -> dict[str, float | None]:
    """The ten numbers, None where something was not measured, and those of OF_METHODS by method.

    chosen: the windowed or budgeted variant that is judged.
    """

    def one(part: str, method: str | None, metric: str, length: float | None = None) -> float | None:
        rows = table[(table["part"] == part) & (table["method"] == method) & (table["metric"] == metric)]
        rows = rows[rows["size"] == EMBEDDED]
        rows = rows if length is None else rows[rows["length"] == length]
        return float(rows["value"].iloc[0]) if len(rows) else None

    short, long = (one(SYNTHETIC, WINDOW, "credit_s_per_completion", length) for length in (256, 1024))
    backward = [value for method in ONE_BACKWARD if (value := one(EMBEDDED, method, SPEARMAN)) is not None]
    methods = table[(table["part"] == METHODS) & (table["method"] != GRPO) & table["metric"].isin(OF_METHODS)]
    memory = table.loc[(table["metric"] == "memory_ratio") & (table["method"] == EXACT), "value"]
    return {
        "oar_g_step_ratio": one(STEPS, OAR_G, "step_ratio"),
        "oar_gn_step_ratio": one(STEPS, OAR_GN, "step_ratio"),
        "oar_p_exact_step_ratio": one(STEPS, EXACT, "step_ratio"),
        "oar_p_window_step_ratio": one(STEPS, chosen, "step_ratio"),
        "oar_p_window_spearman": one(EMBEDDED, chosen, SPEARMAN),
        "exact_over_plain_256": one(SYNTHETIC, EXACT, "over_plain", 256),
        "exact_token_over_plain_256": one(SYNTHETIC, EXACT, "token_over_plain", 256),
        "window_growth_256_1024": long / short if short and long else None,
        "best_one_backward_spearman": max(backward, default=None),
        "peak_extra_memory_ratio": float(memory.max()) if len(memory) else None,
        **{
            f"{method}_{metric}": float(value)
            for method, metric, value in methods[["method", "metric", "value"]].to_numpy()
        },
    }


def _second_metrics(seconds: Seconds, completions: int) -> Iterator[tuple[str, str, float]]:
    for method, found in seconds.items():
        updates, credits = found["update"], found["credit"]
        yield method, "rounds", len(_after_warm_up(updates))
        for name, value in _quartiles("update_s", _after_warm_up(updates)):
            yield method, name, value
        for name, value in _quartiles("update_ratio", _paired(updates, seconds[GRPO]["update"])):
            yield method, name, value
        for name, value in _quartiles("credit_s_per_completion", [s / completions for s in _after_warm_up(credits)]):
            yield method, name, value


def _without_generation(step: Mapping[str, float]) -> float:
    return step["total"] - step["generation"]


def _after_warm_up(values: Sequence[float]) -> Sequence[float]:
    """All but the first round, for whoever had more than one."""
    return values[1:] if len(values) > 1 else values


def _paired(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Ratios of what was measured in the same round; of whoever had a single one, to what counts of the other."""
    together = list(zip(ours, theirs, strict=False))
    if len(together) == 1:  # the other's first round warmed it up
        return [float(np.median(_after_warm_up(ours)) / np.median(_after_warm_up(theirs)))]
    return [one / other for one, other in together[1:]]


def _quartiles(name: str, values: Sequence[float]) -> list[tuple[str, float]]:
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
    return [(name, float(middle)), (f"{name}_q1", float(low)), (f"{name}_q3", float(high))]


def _fidelity(
    method: str,
    importance: Mapping[str, Sequence[Sequence[float]]],
    weights: Mapping[str, Sequence[Sequence[float]]],
    problems: Sequence[str] | None = None,
) -> Iterator[tuple[str, float]]:
    """Agreement with exact OAR-P, mean over completions; with `problems` the 95 % interval over problems as well."""
    found = agreements(importance[method], importance[EXACT], weights[method], weights[EXACT])
    found = found[[SPEARMAN, OVERLAP, WEIGHTS]].rename(columns={WEIGHTS: CORRELATION})
    for metric, value, low, high, _ in averages(found, np.asarray(problems or found.index), seed=0):
        yield metric, value
        if problems is not None:
            yield f"{metric}_low", low
            yield f"{metric}_high", high
