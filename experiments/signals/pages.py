"""What the pages of the three experiments on signals say (docs/METHOD.md §7.5, §7.6, §7.8)."""

from pathlib import Path

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure

from experiments.signals.disturbance import ATTENTION, CONTINUATION, NEXT_TOKEN
from experiments.signals.error_location import AT, ERRORS, LOCATED, MASS_AT, PLACES, TENTHS, THIRDS
from experiments.signals.mask_artefacts import (
    BETWEEN_DRAWS,
    CAUSAL,
    CHANGED,
    CHANGED_AUC,
    NATS,
    REFERENCE_LARGER,
    WORD_FIFTH,
    WORD_MASS,
    WORD_WEIGHT,
    WORDS,
)
from experiments.signals.proxy_mismatch import (
    AFTER_WEIGHT,
    BEFORE_WEIGHT,
    CAUSAL_WEIGHT,
    CORRECT_LESS_WRONG,
    CORRELATION,
    ERROR_WEIGHT,
    MASS,
    SUPERVISION,
)
from experiments.signals.proxy_mismatch import NATS as TOTAL
from oar.analysis.reports.figures import COLOURS, MARKERS, STYLE, save_png
from oar.analysis.reports.signals import CHANCE, Section, SignalPage
from oar.analysis.signals.agreement import WEIGHTS
from oar.analysis.signals.recall import (
    ALL,
    AUC,
    CORRECT,
    ERROR_FIFTH,
    ERROR_PERCENTILE,
    OVERLAP,
    RECALL_FIFTH,
    SPEARMAN,
    WRONG,
)
from oar.tasks.words.oracle import CAUSAL_ROLES

GATED = "Weights are those of the gate as in training (`{gating}`, tau {tau:g}, beta {beta:g}); under GRPO all of them are 1."
SAME = "The completions are those of the [oracle recall](../recall/recall.md), unless its settings were changed."

MASK_ARTEFACTS = SignalPage(
    name="mask_artefacts",
    title="Mask artefacts",
    question="""OAR-P changes a token to the pad token, which no model has seen in the middle of a text. How much do
importance, ranks, weights and the causal tokens that are found depend on what a token is changed to, and is the effect of
pad an artefact of an input out of the distribution (docs/METHOD.md §7.5)?""",
    paper="""It masks with the pad token; its reviewers ask for this experiment. A value is not among those we hold.""",
    reading=f"""{SAME} {GATED} The reference is the first line, pad. *Agreement*: within a completion; *drawn again*: of the
same counterfactual with another seed, which is the most that two random counterfactuals could agree. *Words* are the
reasoning tokens that are no digit, operator or equals sign, punctuation included: no word names an operation or a number,
so the answer should not hang on which word stands there. *Share of importance, top fifth that are words*: what goes to
them.

`resampled` draws the token from the policy itself, so its input stays in the distribution, but it often comes out the same
and then moves nothing. The tables on **changed tokens** are of just those reasoning tokens where it came out different, for
every counterfactual the same tokens. *Importance*: mean over these tokens, in nats. *Pad larger*: the share of them on
which pad moves the answer further (ties count a half). *Next token*: KL between what the model expects right after the
token, before and after the change. *Continuation*: by how many nats per token the rest of its own reasoning becomes less
likely. *Attention*: the share of its attention that a later reasoning token gives to the position (`unchanged`: to the
token as it was). The last three are of one completion per problem. Under `knockout` the token itself stays, so what follows
it directly is expected as before: a blank.""",
    sections=[
        Section(
            "Agreement with pad, and with the same counterfactual drawn again",
            {
                (ALL, SPEARMAN): "Spearman",
                (ALL, OVERLAP): "shared top fifth",
                (ALL, WEIGHTS): "correlation of weights",
                (ALL, SPEARMAN + BETWEEN_DRAWS): "drawn again: Spearman",
                (ALL, OVERLAP + BETWEEN_DRAWS): "top fifth",
                (ALL, WEIGHTS + BETWEEN_DRAWS): "weights",
            },
        ),
        Section(
            "Which tokens are found",
            {
                (ALL, AUC): "causal tokens: AUC",
                (ALL, RECALL_FIFTH): "recall in top fifth",
                (ALL, WORD_MASS): "words: share of importance",
                (ALL, WORD_FIFTH): "top fifth that are words",
                (ALL, WORD_WEIGHT): "weight of words",
            },
        ),
        Section(
            "Differences from pad, completion by completion",
            {
                (ALL, AUC): "causal tokens: AUC",
                (ALL, RECALL_FIFTH): "recall in top fifth",
                (ALL, WORD_MASS): "words: share of importance",
                (ALL, WORD_WEIGHT): "weight of words",
                (ALL, CHANGED_AUC): "changed tokens: AUC",
            },
            sign="+",
        ),
        Section(
            "Changed tokens: how far the answer moves",
            {
                (ALL, CHANGED_AUC): "AUC, causal against words",
                (CAUSAL, NATS): "importance, causal",
                (WORDS, NATS): "importance, words",
                (CAUSAL, REFERENCE_LARGER): "pad larger, causal",
                (WORDS, REFERENCE_LARGER): "pad larger, words",
                (CAUSAL, CHANGED): "tokens changed, causal",
                (WORDS, CHANGED): "tokens changed, words",
            },
            form=".2g",
        ),
        Section(
            "Changed words: how far the model is disturbed",
            {
                (WORDS, NEXT_TOKEN): "next token, nats",
                (WORDS, CONTINUATION): "continuation, nats per token",
                (WORDS, ATTENTION): "attention",
            },
            form=".2g",
        ),
        Section(
            "Changed causal tokens: how far the model is disturbed",
            {
                (CAUSAL, NEXT_TOKEN): "next token, nats",
                (CAUSAL, CONTINUATION): "continuation, nats per token",
                (CAUSAL, ATTENTION): "attention",
            },
            form=".2g",
        ),
    ],
    panels={
        (ALL, SPEARMAN): "Spearman with pad,\nall tokens",
        (ALL, AUC): "causal tokens: AUC,\nall tokens",
        (ALL, CHANGED_AUC): "causal against words:\nAUC, changed tokens",
        (ALL, WORD_MASS): "share of importance\non words, all tokens",
        (WORDS, NEXT_TOKEN): "changed words: KL of\nthe next token (nats)",
        (WORDS, CONTINUATION): "changed words: continuation\nless likely (nats per token)",
    },
    caption="What the counterfactual changes: agreement, causal tokens found, and how far the model is disturbed.",
)

PROXY_MISMATCH = SignalPage(
    name="proxy_mismatch",
    title="Proxy mismatch",
    question="""OAR takes what moves the model's own answer for what deserves credit. Does its importance follow
ground-truth process supervision, and does it do so as well in wrong completions, where the model's own answer is the wrong
one (docs/METHOD.md §7.6)?""",
    paper="""It and its reviewers call for this experiment; a value is not among those we hold.""",
    reading=f"""{SAME} {GATED} *Causal tokens*: digits and operators of the written computation and the start number, by the
generator's marks. *Supervision*: what a supervisor of the process would mark: the causal tokens of a right completion, the
first wrong token of a wrong one (found by replaying the problem). *Correlation*: Spearman's, within a completion; `uniform`
has none (0). *AUC*: the probability that a token the supervisor marks has a larger importance than another one; a rank
correlation with a single marked token could not be compared with one of many. `oracle_causal` and `oracle_error` are the
marks themselves. *Share of importance*: on causal tokens; of
`uniform` it is their share of tokens. *Correct - wrong*: the mean over right completions less the mean over wrong ones,
problems resampled together. *Weight*: mean over the marked tokens of a completion. Before the first error the causal tokens
of a wrong completion are right, and are blamed all the same; after it they follow from the error.""",
    sections=[
        Section(
            "Correlation with causal tokens",
            {
                (CORRECT, CORRELATION): "correct",
                (WRONG, CORRELATION): "wrong",
                (CORRECT_LESS_WRONG, CORRELATION): "correct - wrong",
            },
        ),
        Section(
            "Process supervision: AUC",
            {
                (CORRECT, SUPERVISION): "correct",
                (WRONG, SUPERVISION): "wrong",
                (CORRECT_LESS_WRONG, SUPERVISION): "correct - wrong",
            },
        ),
        Section(
            "Importance on causal tokens, and how much of it there is",
            {
                (CORRECT, MASS): "share, correct",
                (WRONG, MASS): "share, wrong",
                (CORRECT_LESS_WRONG, MASS): "correct - wrong",
                (CORRECT, TOTAL): "sum, correct",
                (WRONG, TOTAL): "sum, wrong",
            },
        ),
        Section(
            "What the gate makes of it: praise and blame",
            {
                (CORRECT, CAUSAL_WEIGHT): "causal tokens, correct",
                (WRONG, CAUSAL_WEIGHT): "causal tokens, wrong",
                (WRONG, BEFORE_WEIGHT): "before the first error",
                (WRONG, ERROR_WEIGHT): "the first wrong token",
                (WRONG, AFTER_WEIGHT): "after it",
            },
        ),
        Section(
            "Differences, completion by completion",
            {
                (CORRECT, CORRELATION): "causal, correct",
                (WRONG, CORRELATION): "causal, wrong",
                (WRONG, SUPERVISION): "supervision, wrong",
                (WRONG, ERROR_WEIGHT): "weight of the first wrong token",
            },
            sign="+",
        ),
    ],
    panels={
        (CORRECT, CORRELATION): "correlation with causal\ntokens, correct",
        (WRONG, CORRELATION): "correlation with causal\ntokens, wrong",
        (WRONG, SUPERVISION): "AUC of the first\nwrong token, wrong",
        (CORRECT, CAUSAL_WEIGHT): "weight of causal\ntokens, correct",
        (WRONG, BEFORE_WEIGHT): "weight of causal tokens\nbefore the first error",
        (WRONG, ERROR_WEIGHT): "weight of the\nfirst wrong token",
    },
    caption="Importance and its weights against process supervision; the dotted line is GRPO, every token alike.",
)


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


ERROR_LOCATION = SignalPage(
    name="error_location",
    title="Error location",
    question="""Where do wrong completions first go wrong, and does the credit signal point there (docs/METHOD.md §7.8)? If
not, blame goes to the wrong tokens.""",
    paper="""Nothing that we hold: the question is ours.""",
    reading=f"""{SAME} Only wrong completions; the first wrong token is found by replaying the problem. *Where*: the share
of wrong completions by what their first wrong token is: the start number, a number `before` the operator (the state,
copied), the `operator` or `operand` (read from the question), the result `after` the equals sign (computed), something else
in the reasoning, the answer itself (`rest`), or none that could be named (`nowhere`: equations left out). The other tables
are of errors in the reasoning. *Top fifth*: how often the first wrong token is among the fifth of the reasoning tokens with
the largest signal; *percentile*: the share of the other tokens that its signal exceeds. Equal values are ordered at random,
in expectation: `uniform` is chance. *Thirds* are of the reasoning, by where the error is.""",
    sections=[
        Section(
            "Where the first errors are",
            {(WRONG, f"{AT}_{place}"): place for place in PLACES},
        ),
        Section(
            "First wrong token in the top fifth",
            {(LOCATED, ERROR_FIFTH): "all", **{(third, ERROR_FIFTH): third for third in THIRDS}},
        ),
        Section(
            "First wrong token in the top fifth, by what it is",
            {(role, ERROR_FIFTH): role for role in CAUSAL_ROLES},
        ),
        Section(
            "Percentile of the first wrong token",
            {(LOCATED, ERROR_PERCENTILE): "all", **{(third, ERROR_PERCENTILE): third for third in THIRDS}},
        ),
        Section(
            "Differences in the top fifth, completion by completion",
            {(LOCATED, ERROR_FIFTH): "all", **{(third, ERROR_FIFTH): third for third in THIRDS}},
            sign="+",
        ),
    ],
    panels={
        (LOCATED, ERROR_FIFTH): "first wrong token in\nthe top fifth, all",
        **{(third, ERROR_FIFTH): f"error in the\n{third}" for third in THIRDS},
        (LOCATED, ERROR_PERCENTILE): "percentile of the\nfirst wrong token, all",
    },
    caption="How often a signal's top fifth holds the first wrong token; the dotted line is chance.",
    more={
        "where.png": (
            "Bars: where the first errors are. Lines: where each signal lies in these completions; dotted: the constant one.",
            draw_where,
        )
    },
)
