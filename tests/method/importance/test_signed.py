"""OAR with a sign, against plain forwards of the whole model, one counterfactual after another."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from transformers import Qwen2ForCausalLM

from oar.common.errors import DataError
from oar.method.batch import CompletionBatch, collate
from oar.method.credit import CreditAssigner
from oar.method.gating import make_gate
from oar.method.importance import (
    CounterfactualDrop,
    CreditInputs,
    GradientDrop,
    PerturbationImportance,
    SignedAdvantages,
    SignMatchedImportance,
)
from oar.method.probes import AnswerMeanProbe
from oar.method.segments import Segments
from tests.method.importance.test_hand_built import ANSWER, COUNTED, completions, hand_built_model
from tests.models import MARKER, PAD, credit_inputs, tiny_model

EXACT = CounterfactualDrop(PerturbationImportance(max_tokens_per_forward=64))
BOUNDED = replace(EXACT, bounded=True)
# prompt, reasoning, answer, gold: right to the letter, wrong, shorter than the right one, and longer.
ROWS = [
    ([2, 10, 11], [20, 21, 22, 23], [30, 31], [30, 31]),
    ([2, 12], [24, 25], [32], [33]),
    ([2], [26, 27, 28], [34], [35, 36, 37]),
    ([2, 13, 14, 15], [29, 20, 24, 31, 9], [38, 39, 30], [31]),
]


def policy() -> Qwen2ForCausalLM:
    """A random model whose pad token is something: its embedding is not 0, as that of a new model is."""
    model = tiny_model()
    with torch.no_grad():
        model.get_input_embeddings().weight[PAD] = model.get_input_embeddings().weight.std(dim=0)
    return model


def batch(golds: bool = True) -> CompletionBatch:
    texts = [[*reasoning, MARKER, *answer, 1] for _, reasoning, answer, _ in ROWS]
    borders = [Segments(len(r), len(r) + 1, len(r) + 1 + len(a)) for _, r, a, _ in ROWS]
    said = [gold for *_, gold in ROWS] if golds else []
    return collate([row[0] for row in ROWS], texts, [[-1.0] * len(text) for text in texts], borders, said, pad_id=PAD)


def inputs(advantages: Tensor | None = None, *, keep_graph: bool = False, golds: bool = True) -> CreditInputs:
    given = credit_inputs(batch(golds), AnswerMeanProbe(), model=policy(), keep_graph=keep_graph)
    return CreditInputs(given.model, given.batch, given.probe, given.scores, given.seeds, {}, advantages)


def likelihood(model: torch.nn.Module, before: Tensor, gold: list[int], bounded: bool) -> Tensor:
    """log p(gold) behind input embeddings (L, H), or the probabilities of its tokens added up."""
    embedded = torch.cat([before, model.get_input_embeddings()(torch.tensor(gold))])[None]
    logits = model(inputs_embeds=embedded).logits[0, len(before) - 1 : -1]
    chosen = logits.softmax(dim=-1)[range(len(gold)), gold]
    return chosen.sum() if bounded else chosen.log().sum()


def plain(slope: bool = False, bounded: bool = False, size: float = 1.0) -> Tensor:
    """s_t (B, T) by whole forwards; or to first order, by autograd along the way to the token's embedding from `size` x pad's."""
    model = policy()
    embed, found = model.get_input_embeddings(), torch.zeros(len(ROWS), 10)
    for row, (prompt, reasoning, _, gold) in enumerate(ROWS):
        clean = embed(torch.tensor([*prompt, *reasoning, MARKER])).detach()
        for at in range(len(reasoning)):
            changed = clean.clone()
            changed[len(prompt) + at] = size * embed(torch.tensor(PAD)).detach()
            if slope:
                step = torch.zeros((), requires_grad=True)
                (found[row, at],) = torch.autograd.grad(
                    likelihood(model, clean + step * (clean - changed), gold, bounded), step
                )
            else:
                with torch.no_grad():
                    own, other = (likelihood(model, one, gold, bounded) for one in (clean, changed))
                    found[row, at] = own - other
    return found


@pytest.mark.parametrize("keep_graph", [False, True], ids=["a forward of its own", "the update's forward at hand"])
def test_counterfactuals_and_slope_are_those_of_plain_forwards(keep_graph: bool) -> None:
    given = inputs(keep_graph=keep_graph)
    slopes = (GradientDrop(), plain(slope=True)), (GradientDrop("zero"), plain(slope=True, size=0.0))
    for signal, expected in ((EXACT, plain()), *slopes, (BOUNDED, plain(bounded=True))):
        torch.testing.assert_close(signal(given), expected, atol=2e-5, rtol=1e-4)
    assert (plain() < -1e-3).any()
    assert (plain() > 1e-3).any()


def test_a_bounded_drop_does_not_grow_where_nothing_is_likely() -> None:
    """Logits that are many times as large: nats grow with them, and tokens of the answer are at most as many as it has."""
    model = tiny_model()
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(200)
    given = credit_inputs(batch(), AnswerMeanProbe(), model=model)
    longest = torch.tensor([[len(gold)] for *_, gold in ROWS])
    assert (EXACT(given).abs() > longest).any()
    assert (BOUNDED(given).abs() <= longest).all()


def test_a_token_that_speaks_for_a_wrong_answer_harms_the_right_one() -> None:
    """In the model whose weights were set by hand, counted tokens vote for the answer that is given."""
    marked, marks = completions(0)
    row = 0
    ids = marked.completion_ids[row, : int(marked.completion_lengths[row])].tolist()
    prompt = marked.input_ids[row, : int(marked.prompt_lengths[row])].tolist()
    length = int(marked.reasoning_mask[row].sum())
    value = (ids[int(marks[row].nonzero()[0])] - COUNTED) // 3
    border = Segments(length, length + 1, length + 1 + int(marked.answer_mask[row].sum()))
    for gold, sign in ((ANSWER + value, 1), (ANSWER + (value + 1) % 4, -1)):
        one = collate([prompt], [ids], [[0.0] * len(ids)], [border], [[gold]], pad_id=PAD)
        drop = EXACT(credit_inputs(one, AnswerMeanProbe(), model=hand_built_model()))[0, :length]
        counted = marks[row, :length]
        assert (sign * drop[counted] > 0.05).all()
        assert (drop[~counted].abs() < 0.01).all()


def test_the_gate_sees_what_agrees_with_the_advantage() -> None:
    drop, advantages = EXACT(inputs()), torch.tensor([0.5, -2.0, 0.5, -0.1])
    found = SignMatchedImportance(EXACT)(inputs(advantages))
    expected = torch.stack(
        [drop[0].clamp(min=0), (-drop[1]).clamp(min=0), drop[2].clamp(min=0), (-drop[3]).clamp(min=0)]
    )
    assert torch.equal(found, expected)
    with pytest.raises(DataError, match="needs the advantages"):
        SignMatchedImportance(EXACT)(inputs())


def test_signed_advantages_need_no_group() -> None:
    """A group without a difference in reward has A = 0 everywhere, and its tokens are told apart all the same."""
    given, advantages = inputs(), torch.tensor([0.0, 0.0, 1.5, -0.5])
    assigner = CreditAssigner(
        SignedAdvantages(EXACT, scale=2.0), make_gate(tau=0.4, beta=2.0, floor=0.1, threshold="quantile"), given.probe
    )
    credit = assigner(given.model, given.batch, given.scores, advantages, seeds=given.seeds)
    reasoning, token = given.batch.reasoning_mask, given.batch.completion_mask
    torch.testing.assert_close(credit.token_advantages[reasoning], 2 * EXACT(given)[reasoning])
    others = advantages[:, None].expand_as(credit.token_advantages)
    assert torch.equal(credit.token_advantages[token & ~reasoning], others[token & ~reasoning])
    assert (credit.token_advantages[:2][reasoning[:2]] != 0).any()
    beside = SignedAdvantages(EXACT, scale=2.0, outcome=0.5)(inputs(advantages))
    torch.testing.assert_close(beside[reasoning], (2 * EXACT(given) + 0.5 * others)[reasoning])
    assert torch.equal(beside[token & ~reasoning], others[token & ~reasoning])


def test_a_completion_without_an_answer_span_keeps_its_advantage() -> None:
    """Whatever is known of its reasoning."""
    given, others = inputs(torch.tensor([0.5, -2.0, 0.5, -0.1])), torch.tensor([0, 2, 3])
    spans = given.batch.answer_mask.clone()
    spans[1] = False
    found = SignedAdvantages(EXACT)(replace(given, batch=replace(given.batch, answer_mask=spans)))
    assert (found[1] == -2.0).all()
    torch.testing.assert_close(found[others], SignedAdvantages(EXACT)(given)[others])


def test_without_the_right_answer_one_sentence_says_so() -> None:
    with pytest.raises(DataError, match="needs the right answer of every problem"):
        EXACT(inputs(golds=False))
    given = inputs()
    one_without = given.batch.gold_mask.clone()
    one_without[2] = False
    with pytest.raises(DataError, match="but one has none"):
        EXACT(replace(given, batch=replace(given.batch, gold_mask=one_without)))
