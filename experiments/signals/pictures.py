"""The pictures of the experiments on signals; what their pages say is in the templates beside this file."""

from pathlib import Path

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure

from experiments.signals.disturbance import CONTINUATION, NEXT_TOKEN
from experiments.signals.error_location import AT, ERRORS, LOCATED, MASS_AT, TENTHS, THIRDS
from experiments.signals.mask_artefacts import CHANGED_AUC, WORD_MASS, WORDS
from experiments.signals.proxy_mismatch import BEFORE_WEIGHT, CAUSAL_WEIGHT, CORRELATION, ERROR_WEIGHT, SUPERVISION
from oar.analysis.reports.figures import COLOURS, MARKERS, STYLE, save_png
from oar.analysis.reports.signals import CHANCE
from oar.analysis.signals.recall import ALL, AUC, CORRECT, ERROR_FIFTH, ERROR_PERCENTILE, SPEARMAN, WRONG

PANELS = {
    "mask_artefacts": {
        (ALL, SPEARMAN): "Spearman with pad,\nall tokens",
        (ALL, AUC): "causal tokens: AUC,\nall tokens",
        (ALL, CHANGED_AUC): "causal against words:\nAUC, changed tokens",
        (ALL, WORD_MASS): "share of importance\non words, all tokens",
        (WORDS, NEXT_TOKEN): "changed words: KL of\nthe next token (nats)",
        (WORDS, CONTINUATION): "changed words: continuation\nless likely (nats per token)",
    },
    "proxy_mismatch": {
        (CORRECT, CORRELATION): "correlation with causal\ntokens, correct",
        (WRONG, CORRELATION): "correlation with causal\ntokens, wrong",
        (WRONG, SUPERVISION): "AUC of the first\nwrong token, wrong",
        (CORRECT, CAUSAL_WEIGHT): "weight of causal\ntokens, correct",
        (WRONG, BEFORE_WEIGHT): "weight of causal tokens\nbefore the first error",
        (WRONG, ERROR_WEIGHT): "weight of the\nfirst wrong token",
    },
    "error_location": {
        (LOCATED, ERROR_FIFTH): "first wrong token in\nthe top fifth, all",
        **{(third, ERROR_FIFTH): f"error in the\n{third}" for third in THIRDS},
        (LOCATED, ERROR_PERCENTILE): "percentile of the\nfirst wrong token, all",
    },
    "method_signals": {
        (ALL, SPEARMAN): "Spearman with\nexact OAR-P",
        (CORRECT, AUC): "causal tokens: AUC,\ncorrect completions",
        (WRONG, AUC): "causal tokens: AUC,\nwrong completions",
        (WRONG, ERROR_FIFTH): "first wrong token\nin the top fifth",
    },
}


def draw_where(table: pd.DataFrame, path: Path) -> None:
    """A panel per model: bars are the first errors by tenth of the reasoning, lines what each signal gives to each tenth.

    The constant signal is the dotted line.
    """
    models = list(table["model"].unique())
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(1.5 + 5 * len(models), 4.2), layout="constrained")
        panels = figure.subplots(1, len(models), sharey=True, squeeze=False)[0]
        for axes, model in zip(panels, models, strict=True):
            rows = table[(table["model"] == model) & (table["split"] == LOCATED)]
            middle = [(tenth + 0.5) / TENTHS for tenth in range(TENTHS)]
            bars = _tenths(rows[rows["signal"] == ERRORS], AT)
            axes.bar(middle, bars, width=0.9 / TENTHS, color="#cccccc", label="first errors")
            axes.axhline(1 / TENTHS, color="#555555", linewidth=1, linestyle=":")
            named = [name for name in rows["signal"].unique() if name != CHANCE]
            lines = [name for name in named if _tenths(rows[rows["signal"] == name], MASS_AT)]
            for index, name in enumerate(lines):
                style = {"color": COLOURS[index % len(COLOURS)], "marker": MARKERS[index % len(MARKERS)]}
                axes.plot(middle, _tenths(rows[rows["signal"] == name], MASS_AT), markersize=4, label=name, **style)
            axes.set_title(model, loc="left", fontsize=10)
            axes.set_xlabel("place in the reasoning (0: its start, 1: the marker)")
        panels[0].set_ylabel("share in each tenth")
        panels[-1].legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
        save_png(figure, path)


def _tenths(rows: pd.DataFrame, metric: str) -> list[float]:
    values = dict(zip(rows["metric"], rows["value"], strict=True))
    names = [f"{metric}_{tenth / TENTHS:.1f}" for tenth in range(TENTHS)]
    return [values[name] for name in names if name in values]


MORE = {"error_location": {"where.png": draw_where}}
