"""The pictures of the experiments on signals; what their pages say is in the templates beside this file."""

from functools import partial
from pathlib import Path

import pandas as pd

from experiments.signals.disturbance import CONTINUATION, NEXT_TOKEN
from experiments.signals.error_location import AT, ERRORS, LOCATED, MASS_AT, TENTHS, THIRDS
from experiments.signals.mask_artefacts import CHANGED_AUC, WORD_MASS, WORDS
from experiments.signals.proxy_mismatch import BEFORE_WEIGHT, CAUSAL_WEIGHT, CORRELATION, ERROR_WEIGHT, SUPERVISION
from oar.analysis.reports.figures import QUIET, dash, legend_below, panels, picture, series_of, style
from oar.analysis.reports.methods import looks_of
from oar.analysis.reports.signals import CHANCE, Pictures, draw_panels
from oar.analysis.signals.recall import ALL, AUC, CORRECT, ERROR_FIFTH, ERROR_PERCENTILE, SPEARMAN, WRONG

OF_METHODS = {
    (ALL, SPEARMAN): "Spearman with\nexact OAR-P",
    (CORRECT, AUC): "causal tokens: AUC,\ncorrect completions",
    (WRONG, AUC): "causal tokens: AUC,\nwrong completions",
    (WRONG, ERROR_FIFTH): "first wrong token\nin the top fifth",
}
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
    "method_signals": OF_METHODS,
    "open_outcomes": OF_METHODS,
}


def draw_where(table: pd.DataFrame, path: Path) -> None:
    """A panel per model: bars are the first errors by tenth of the reasoning, lines what each signal gives to each tenth.

    The constant signal is the dotted line.
    """
    models = list(table["model"].unique())
    located = table[table["split"] == LOCATED]
    signals = looks_of([name for name in located["signal"].unique() if name != CHANCE])
    with picture(path, 4.6) as figure:
        grid = panels(figure, [f"model {model}" for model in models], len(models), sharey=True)
        for axes, model in zip(grid, models, strict=True):
            rows = located[located["model"] == model]
            middle = [(tenth + 0.5) / TENTHS for tenth in range(TENTHS)]
            bars = axes.bar(middle, _tenths(rows[rows["signal"] == ERRORS], AT), width=0.9 / TENTHS, color="#cccccc")
            axes.axhline(1 / TENTHS, color=QUIET, linewidth=1, linestyle=":")
            for name, look in signals.items():
                if shares := _tenths(rows[rows["signal"] == name], MASS_AT):
                    axes.plot(middle, shares, label=look.label, linestyle=dash(look), **style(look))
            axes.set_xlabel("place in the reasoning (0: its start, 1: the marker)")
        grid[0].set_ylabel("share in each tenth")
        legend_below(figure, {"first errors": bars} | series_of(grid, signals))


def _tenths(rows: pd.DataFrame, metric: str) -> list[float]:
    values = dict(zip(rows["metric"], rows["value"], strict=True))
    names = [f"{metric}_{tenth / TENTHS:.1f}" for tenth in range(TENTHS)]
    return [values[name] for name in names if name in values]


PICTURES: dict[str, Pictures] = {
    name: {f"{name}.png": partial(draw_panels, panels=of_name)} for name, of_name in PANELS.items()
}
PICTURES["error_location"] = {**PICTURES["error_location"], "where.png": draw_where}
