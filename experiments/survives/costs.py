"""What a whole training step with each method takes beside GRPO's, on both models (experiments.bench_importance). Pure."""

import pandas as pd

WHOLE_STEPS = ("steps", "methods")  # parts of the benchmark that take them
RATIO, SECONDS, PEAK = "step_ratio", "total_s", "step_peak_mib"


def costs(embedded: pd.DataFrame, pretrained: pd.DataFrame) -> pd.DataFrame:
    """A row per method of `pretrained`, in its order: RATIO of `embedded` (NaN where it has none), RATIO, SECONDS and PEAK (MiB).

    Both are bench_importance.csv: part, method, metric, value.
    """
    ratio = _of_steps(embedded, RATIO)
    found = {name: _of_steps(pretrained, name) for name in (RATIO, SECONDS, PEAK)}
    return pd.DataFrame({"embedded": ratio.reindex(found[RATIO].index), **found}).rename_axis("method").reset_index()


def _of_steps(table: pd.DataFrame, metric: str) -> "pd.Series[float]":
    rows = table[table["part"].isin(WHOLE_STEPS) & (table["metric"] == metric)]
    return rows.drop_duplicates("method").set_index("method")["value"]
