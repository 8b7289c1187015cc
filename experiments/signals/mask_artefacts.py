"""How much does importance depend on what a token is changed to, and is the pad mask an artefact (docs/METHOD.md §7.5)?

The paper's mask puts a pad token in the middle of a text: where the model never saw one, or, in many chat models, where it
ends a turn. Other counterfactuals are held against it: the token cut out of attention, the mean of all embeddings, a token that
is named, another one of the vocabulary, and a token that the policy itself might have written there (`resampled`). The last is
in-distribution, but often comes out the same and then moves nothing: so all of them are also compared on just those tokens where
it came out different, apart for causal tokens and for words, which name no operation and no number and so are known not to
matter.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from experiments.signals.disturbance import (
    ATTENTION,
    disturbance,
    replaced_tokens,
    unchanged_attention,
)
from experiments.signals.examined import Examined, pooled_mean
from oar.analysis.signals.agreement import WEIGHTS, agreements
from oar.analysis.signals.recall import (
    ALL,
    AUC,
    COLUMNS,
    OVERLAP,
    RECALL_FIFTH,
    SPEARMAN,
    Row,
    differences,
    split_averages,
)
from oar.statistics.attribution import Floats, auc, recall_at_top_fifth, spearman, top_fifth, top_k_probability
from oar.tasks.words.oracle import WORD

AGAIN = "_again"  # ends the name of the second draw of a signal
BETWEEN_DRAWS = "_between_draws"
AGREES_WITH = "spearman_with_"  # and the name of another signal
WORD_MASS, WORD_FIFTH, WORD_WEIGHT = "word_mass", "word_top_fifth", "word_weight"
WORDS, CAUSAL = "words", "causal"
POSITION = "position_spearman"
CHANGED, CHANGED_AUC, NATS, REFERENCE_LARGER = "changed_share", "changed_auc", "nats", "reference_larger"
UNCHANGED = "unchanged"
PAD, KNOCKOUT, RESAMPLED = "pad", "knockout", "resampled"


def mask_artefacts(
    examined: Examined, *, kinds: Mapping[str, str], pairs: Sequence[Sequence[str]], seed: int
) -> pd.DataFrame:
    """COLUMNS. kinds: signal to its counterfactual, the reference (pad) first; a second draw is called as the first with AGAIN.

    Of all tokens (split `all`): rank correlation with every other counterfactual (AGREES_WITH) and with the place in the
    reasoning (POSITION); agreement with the reference and, under metrics that end in BETWEEN_DRAWS, with the same
    counterfactual drawn again; causal tokens found; what words get of importance, top fifth and weight. Of the tokens that
    `resampled` changes: CHANGED_AUC (causal against words), and in the splits `words` and `causal` the mean importance, the share
    of tokens on which the reference's is larger, and how far the model is disturbed (of one completion per problem).
    """
    names = [name for name in kinds if not name.endswith(AGAIN)]
    (resampled,) = [name for name in names if kinds[name] == RESAMPLED]
    words = [roles == WORD for roles in examined.roles]
    changed = [
        new != old
        for new, old in zip(
            replaced_tokens(RESAMPLED, examined.inputs), replaced_tokens(KNOCKOUT, examined.inputs), strict=True
        )
    ]
    metrics = {name: _per_completion(examined, name, names[0], words, changed) for name in names}
    rows = split_averages(differences(metrics, pairs), examined.truth.splits(), examined.problems, seed=seed)
    everything = {ALL: np.ones(len(words), dtype=bool)}
    for name in names:
        beside = [
            _agreement(examined, name, other)[[SPEARMAN]].set_axis([AGREES_WITH + other], axis=1)
            for other in names
            if other != name
        ]
        if name + AGAIN in kinds:
            beside.append(_agreement(examined, name + AGAIN, name).add_suffix(BETWEEN_DRAWS))
        rows += split_averages({name: pd.concat(beside, axis=1)}, everything, examined.problems, seed=seed)
    classes = {WORDS: words, CAUSAL: examined.truth.causal}
    disturbed = _disturbed(examined, {name: kinds[name] for name in names})
    for split, members in classes.items():
        asked = [mine & new for mine, new in zip(members, changed, strict=True)]
        share = _pooled([new.astype(float) for new in changed], members, examined.problems, seed=seed)
        rows.append((split, resampled, CHANGED, *share))
        for name in names:
            values, reference = examined.importance[name], examined.importance[names[0]]
            rows.append((split, name, NATS, *_pooled(values, asked, examined.problems, seed=seed)))
            if name != names[0]:
                larger = [(a > b) + 0.5 * (a == b) for a, b in zip(reference, values, strict=True)]
                rows.append((split, name, REFERENCE_LARGER, *_pooled(larger, asked, examined.problems, seed=seed)))
        for name, found in disturbed.items():
            rows += _disturbances(found, name, examined, asked, split, seed=seed)
    return pd.DataFrame(rows, columns=COLUMNS)


def _per_completion(
    examined: Examined,
    name: str,
    reference: str,
    words: Sequence[NDArray[np.bool_]],
    changed: Sequence[NDArray[np.bool_]],
) -> pd.DataFrame:
    truth, weights = examined.truth, examined.weights[name]
    found = [
        completion_artefacts(*completion)
        for completion in zip(examined.importance[name], weights, truth.causal, words, changed, strict=True)
    ]
    return pd.concat([_agreement(examined, name, reference), pd.DataFrame(found)], axis=1)


def completion_artefacts(
    importance: Floats,
    weights: Floats,
    causal: NDArray[np.bool_],
    words: NDArray[np.bool_],
    changed: NDArray[np.bool_],
) -> dict[str, float]:
    """Of one completion, from (T,) each: which tokens the importance finds, and what it gives to words; NaN where undefined."""
    total, fifth = importance.sum(), top_fifth(importance.size)
    asked = changed & (causal | words)
    return {
        AUC: auc(importance, causal),
        RECALL_FIFTH: recall_at_top_fifth(importance, causal),
        WORD_MASS: float(importance[words].sum() / total) if total > 0 else np.nan,
        WORD_FIFTH: float(top_k_probability(importance, fifth)[words].sum() / fifth),
        WORD_WEIGHT: float(weights[words].mean()) if words.any() else np.nan,
        POSITION: spearman(importance, np.arange(importance.size)),
        CHANGED_AUC: auc(importance[asked], causal[asked]) if asked.any() else np.nan,
    }


def _agreement(examined: Examined, name: str, reference: str) -> pd.DataFrame:
    """Rank correlation, shared top fifth and correlation of weights, a row per completion."""
    importance, weights = examined.importance, examined.weights
    found = agreements(importance[name], importance[reference], weights[name], weights[reference])
    return found[[SPEARMAN, OVERLAP, WEIGHTS]]


def _disturbed(examined: Examined, kinds: Mapping[str, str]) -> dict[str, list[dict[str, Floats]]]:
    """By signal, and under UNCHANGED the attention without a change: `disturbance` of the first completion of each problem."""
    firsts = _firsts(examined)
    found = {}
    for name, kind in kinds.items():
        replaced = replaced_tokens(kind, examined.inputs)
        found[name] = [disturbance(examined.inputs, row, kind, replaced[row]) for row in firsts]
    found[UNCHANGED] = [{ATTENTION: unchanged_attention(examined.inputs, row)} for row in firsts]
    return found


def _disturbances(
    found: Sequence[Mapping[str, Floats]],
    name: str,
    examined: Examined,
    asked: Sequence[NDArray[np.bool_]],
    split: str,
    *,
    seed: int,
) -> list[Row]:
    """What `_disturbed` found of a signal, pooled over the tokens asked for."""
    firsts = _firsts(examined)
    rows: list[Row] = []
    for metric in found[0]:
        values = [each[metric] for each in found]
        defined = [asked[row] & np.isfinite(value) for row, value in zip(firsts, values, strict=True)]
        if any(each.any() for each in defined):
            rows.append((split, name, metric, *_pooled(values, defined, examined.problems[firsts], seed=seed)))
    return rows


def _firsts(examined: Examined) -> list[int]:
    """The row of each problem's first completion."""
    return [int(row) for row in np.unique(examined.problems, return_index=True)[1]]


def _pooled(
    values: Sequence[Floats], asked: Sequence[NDArray[np.bool_]], problems: NDArray[np.str_], *, seed: int
) -> tuple[float, float, float, int]:
    """Mean over the tokens asked for of all completions together, its interval, and how many tokens."""
    sums = np.array([value[mask].sum() for value, mask in zip(values, asked, strict=True)])
    counts = np.array([float(mask.sum()) for mask in asked])
    return *pooled_mean(sums, counts, problems, seed=seed), int(counts.sum())
