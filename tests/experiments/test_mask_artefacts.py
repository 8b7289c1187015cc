"""What a counterfactual does: disturbance against plain forwards of a tiny model, and the table by hand."""

import numpy as np
import pandas as pd
import pytest
import torch

from experiments.signals.disturbance import disturbance, replaced_tokens, unchanged_attention
from experiments.signals.mask_artefacts import completion_artefacts, mask_artefacts
from oar.analysis.signals.examine import by_completion
from oar.method.gating import bilevel_weights
from oar.method.importance import CreditInputs, PerturbationImportance
from oar.method.probes import AnswerMeanProbe
from tests.experiments.made import C, W, examined
from tests.models import PAD, credit_inputs, random_batch, tiny_model

KINDS = {
    "pad": "pad",
    "cut": "knockout",
    "other": "random_token",
    "other_again": "random_token",
    "drawn": "resampled",
    "drawn_again": "resampled",
    "mean": "mean_embedding",
}


def inputs(rows: int = 4) -> CreditInputs:
    return credit_inputs(random_batch(3, rows, longest=9), AnswerMeanProbe(), model=tiny_model())


def test_what_is_put_in_a_tokens_place() -> None:
    given = inputs()
    own = by_completion(given.batch.completion_ids, given.batch.reasoning_mask)
    for row, (pad, kept, other) in enumerate(
        zip(*(replaced_tokens(kind, given) for kind in ("pad", "knockout", "random_token")), strict=True)
    ):
        assert (pad == PAD).all()
        assert kept.tolist() == own[row].tolist()
        assert (other != own[row]).all()


@torch.no_grad()
def test_disturbance_is_what_plain_forwards_say() -> None:
    given, row = inputs(), 2
    start, count = int(given.batch.prompt_lengths[row]), int(given.batch.reasoning_mask[row].sum())
    ids = given.batch.input_ids[row, : start + count]
    replaced = replaced_tokens("random_token", given)[row]
    found = disturbance(given, row, "random_token", replaced)
    eager = tiny_model()
    eager.set_attn_implementation("eager")
    clean = eager(ids[None]).logits[0].log_softmax(-1)
    assert count > 3
    for token in range(count):
        changed = ids.clone()
        changed[start + token] = int(replaced[token])
        output = eager(changed[None], output_attentions=True)
        said = output.logits[0].log_softmax(-1)
        at = start + token
        assert found["next_token"][token] == pytest.approx(
            float((clean[at].exp() * (clean[at] - said[at])).sum()), abs=1e-5
        )
        if token == count - 1:
            assert np.isnan(found["continuation"][token])
            assert np.isnan(found["attention"][token])
            continue
        rises = [float(clean[p, ids[p + 1]] - said[p, ids[p + 1]]) for p in range(at, start + count - 1)]
        assert found["continuation"][token] == pytest.approx(np.mean(rises), abs=1e-5)
        looked = [
            float(layer[0, :, later, at].mean())
            for layer in output.attentions
            for later in range(at + 1, start + count)
        ]
        assert found["attention"][token] == pytest.approx(np.mean(looked), abs=1e-5)


def test_nobody_looks_at_a_token_that_is_knocked_out() -> None:
    given, row = inputs(), 1
    own = replaced_tokens("knockout", given)[row]
    found = disturbance(given, row, "knockout", own)
    assert np.isnan(found["next_token"]).all()
    assert np.nanmax(found["attention"]) == 0
    # What comes after does not depend on what stands there, but for what is expected right after it.
    other = disturbance(given, row, "knockout", np.full_like(own, PAD))
    assert np.nanmax(np.abs(found["continuation"])) > 1e-3
    rest = len(own) - 1 - np.arange(len(own) - 1)  # tokens that come after
    kept = rest > 1
    first = _expected_right_after(given, row)
    difference = (other["continuation"][:-1] - found["continuation"][:-1]) * rest
    np.testing.assert_allclose(difference[kept], first[:-1][kept], atol=1e-4)


@torch.no_grad()
def _expected_right_after(given: CreditInputs, row: int) -> np.ndarray:
    """By how much a pad in each token's place makes the next token less likely, (T,)."""
    start, count = int(given.batch.prompt_lengths[row]), int(given.batch.reasoning_mask[row].sum())
    ids = given.batch.input_ids[row, : start + count]
    found = np.zeros(count)
    for token in range(count - 1):
        changed = ids.clone()
        changed[start + token] = PAD
        both = [given.model(each[None]).logits[0, start + token].log_softmax(-1) for each in (ids, changed)]
        found[token] = float(both[0][ids[start + token + 1]] - both[1][ids[start + token + 1]])
    return found


def test_a_token_changed_to_itself_disturbs_nothing() -> None:
    given = inputs()
    own = replaced_tokens("knockout", given)[0]
    found = disturbance(given, 0, "resampled", own)
    assert np.abs(found["next_token"]).max() < 1e-6
    np.testing.assert_allclose(found["attention"], unchanged_attention(given, 0))


def test_one_completion_by_hand() -> None:
    importance, weights = np.array([5.0, 1, 0, 2, 2]), np.array([3.0, 0.5, 0.5, 0.5, 0.5])
    causal, words = np.array([1, 0, 0, 0, 1], bool), np.array([0, 1, 1, 0, 0], bool)
    found = completion_artefacts(importance, weights, causal, words, changed=np.array([0, 1, 0, 1, 1], bool))
    assert found == {
        "causal_auc": pytest.approx((3 + 2.5) / 6),
        "causal_recall_top_fifth": 1 / 2,
        "word_mass": 0.1,
        "word_top_fifth": 0,
        "word_weight": 0.5,
        "position_spearman": pytest.approx(-1.5 / np.sqrt(9.5 * 10)),
        "changed_auc": 1,  # the last token against the second; the fourth is neither
    }


def test_the_table_by_hand() -> None:
    given = inputs(6)
    counts = given.batch.reasoning_mask.sum(dim=1).tolist()
    importance, weights = {}, {}
    for name, kind in KINDS.items():
        seeds = [seed + name.endswith("_again") for seed in given.seeds]
        values = PerturbationImportance(kind)(CreditInputs(given.model, given.batch, given.probe, given.scores, seeds))
        gate = bilevel_weights(values, given.batch.reasoning_mask, tau=0.4, beta=2.0, floor=0.1, threshold="quantile")
        importance[name] = by_completion(values, given.batch.reasoning_mask)
        weights[name] = by_completion(gate, given.batch.reasoning_mask)
    found = examined(
        importance,
        weights=weights,
        problems=["a", "a", "b", "b", "c", "c"],
        correct=[True, False] * 3,
        roles=[[W if token % 2 else C for token in range(count)] for count in counts],
        errors=[None] * 6,
        first_errors=["nowhere"] * 6,
        inputs=given,
    )
    table = mask_artefacts(found, kinds=KINDS, pairs=[("cut", "pad")], seed=0)
    value = table.set_index(["split", "signal", "metric"])["value"]
    assert not table.isna().any().any()
    assert not table.duplicated(["split", "signal", "metric"]).any()
    assert value["all", "pad", "spearman"] == pytest.approx(1)
    assert value["all", "drawn", "spearman_between_draws"] < 1
    assert value["all", "cut", "spearman_with_pad"] == value["all", "pad", "spearman_with_cut"]
    assert value["all", "cut", "spearman_with_pad"] == pytest.approx(value["all", "cut", "spearman"])
    assert ("all", "pad", "spearman_with_pad") not in value
    assert ("all", "pad", "spearman_between_draws") not in value
    assert not [name for name in table["signal"].unique() if name.endswith("_again")]

    own, drawn = replaced_tokens("knockout", given), replaced_tokens("resampled", given)
    tokens = pd.DataFrame(
        [
            (bool(token % 2), own[row][token] != drawn[row][token], row, token)
            for row, count in enumerate(counts)
            for token in range(count)
        ],
        columns=["word", "changed", "row", "token"],
    )
    words = tokens[tokens["word"]]
    assert value["words", "drawn", "changed_share"] == pytest.approx(words["changed"].mean())
    asked = words[words["changed"]]
    pads, cuts = (
        [importance[name][row][token] for row, token in zip(asked["row"], asked["token"], strict=True)]
        for name in ("pad", "cut")
    )
    assert value["words", "pad", "nats"] == pytest.approx(np.mean(pads))
    assert value["words", "cut", "reference_larger"] == pytest.approx(np.mean(np.array(pads) > np.array(cuts)))
    assert ("words", "pad", "reference_larger") not in value
    firsts = asked[asked["row"] % 2 == 0]
    said = [disturbance(given, row, "pad", np.full(counts[row], PAD)) for row in range(6)]
    expected = [said[row]["next_token"][token] for row, token in zip(firsts["row"], firsts["token"], strict=True)]
    assert value["words", "pad", "next_token"] == pytest.approx(np.mean(expected))
    assert value["words", "cut", "attention"] == 0
    assert 0 < value["words", "unchanged", "attention"] < 1
    assert ("words", "cut", "next_token") not in value
