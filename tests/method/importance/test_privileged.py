"""What a teacher with a privileged look says of tokens, and the weights that RLSD and SERL make of it."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from oar.common.errors import ConfigError, DataError
from oar.method.batch import collate
from oar.method.credit import CreditAssigner
from oar.method.forward.logprobs import score_completions
from oar.method.gating import make_gate
from oar.method.importance import ActionWeights, CreditInputs, Schedule, SelfDistilledWeights
from oar.method.importance.base import context_of
from oar.method.importance.privileged import teacher_gap
from oar.method.probes import AnswerMeanProbe
from tests.models import PAD, credit_inputs, in_contexts, random_batch, tiny_model

ADVANTAGES = torch.tensor([0.7, -1.2, 0.0, -0.4, 2.0])
WITHOUT = (1,)


def inputs(*, rows: int = 5, without: tuple[int, ...] = WITHOUT, teacher: int | None = 3) -> CreditInputs:
    batch = in_contexts(random_batch(0, rows=rows), without=without)
    given = credit_inputs(batch, AnswerMeanProbe())
    taught_by = None if teacher is None else tiny_model(teacher)
    return replace(given, advantages=ADVANTAGES[:rows], teacher=taught_by)


@torch.no_grad()
def plain_gap(given: CreditInputs) -> Tensor:
    """lp_T - lp_S by whole forwards of one completion at a time."""
    gap = torch.zeros(given.batch.completion_mask.shape)
    for row in range(len(given.batch)):
        prompt = given.batch.input_ids[row, : given.batch.prompt_lengths[row]]
        context = given.batch.context_ids[row, : given.batch.context_lengths[row]]
        ids = given.batch.completion_ids[row, : given.batch.completion_lengths[row]]
        if not len(context):
            continue
        said = []
        for model, before in ((given.teacher or given.model, context), (given.model, prompt)):
            logits = model(torch.cat([before, ids])[None]).logits[0, len(before) - 1 : -1]
            said.append(logits.log_softmax(-1).gather(1, ids[:, None])[:, 0])
        gap[row, : len(ids)] = said[0] - said[1]
    return gap


def test_a_batch_behind_its_contexts_by_hand() -> None:
    batch = collate(
        [[2, 5], [2]], [[7, 8, 1], [9, 1]], [[0.0] * 3, [0.0] * 2], [None, None], (), [[4], [5, 6, 7]], pad_id=PAD
    )
    shown = batch.in_context()
    assert shown.input_ids.tolist() == [[4, 7, 8, 1, PAD], [5, 6, 7, 9, 1]]
    assert shown.prompt_lengths.tolist() == [1, 3]
    assert batch.rows(torch.tensor([1])).in_context().input_ids.tolist() == [[5, 6, 7, 9, 1]]
    nobody_asked = collate([[2]], [[7]], [[0.0]], [None], pad_id=PAD)
    none_found = collate([[2]], [[7]], [[0.0]], [None], (), [[]], pad_id=PAD)
    assert (nobody_asked.context_ids.shape[1], none_found.context_ids.shape[1]) == (0, 1)
    assert not none_found.has_context.any()


@pytest.mark.parametrize("teacher", [3, None], ids=["another model", "the policy itself"])
@pytest.mark.parametrize("max_tokens", [1, 30, 4096])
def test_the_gap_is_that_of_plain_forwards_however_many_run_at_once(teacher: int | None, max_tokens: int) -> None:
    given = inputs(teacher=teacher)
    found = teacher_gap(given, max_tokens)
    torch.testing.assert_close(found, plain_gap(given), atol=2e-5, rtol=1e-4)
    assert (found[WITHOUT[0]] == 0).all()
    assert found.abs().max() > 0.1


def test_weights_are_the_formula_and_their_own() -> None:
    given, signal = inputs(), SelfDistilledWeights(0.3, 0.2)
    weights, gap = signal(given), plain_gap(given)
    for row, advantage in enumerate(ADVANTAGES.tolist()):
        for token in range(int(given.batch.completion_lengths[row])):
            sign = (advantage > 0) - (advantage < 0)
            evidence = min(max(2.718281828 ** (sign * float(gap[row, token])), 0.8), 1.2)
            assert float(weights[row, token]) == pytest.approx(0.7 + 0.3 * evidence, abs=1e-4)
    mask = given.batch.completion_mask
    assert weights[mask].min() >= 0.94 - 1e-6
    assert weights[mask].max() <= 1.06 + 1e-6
    assert (weights[~mask] == 1).all()
    assert (weights[[1, 2]] == 1).all()  # without a context, and without an advantage
    for row in range(len(given.batch)):
        alone = signal(given.rows(torch.tensor([row])))
        torch.testing.assert_close(alone[0], weights[row], atol=1e-5, rtol=1e-5)


def test_the_other_sign_is_the_other_way_round() -> None:
    given, signal = inputs(), SelfDistilledWeights(1.0, 1.0)
    weights, turned = signal(given), signal(replace(given, advantages=-ADVANTAGES))
    gap = plain_gap(given)
    inside = (
        (gap.abs() < 0.69) & (ADVANTAGES != 0)[:, None] & given.batch.has_context[:, None] & given.batch.completion_mask
    )
    assert inside.sum() > 3
    torch.testing.assert_close((weights * turned)[inside], torch.ones(int(inside.sum())), atol=1e-4, rtol=1e-4)


def test_where_it_is_grpo() -> None:
    given = inputs()
    same = replace(given.batch, context_ids=given.batch.input_ids, context_lengths=given.batch.prompt_lengths)
    at_home = replace(given, batch=same, teacher=None)
    torch.testing.assert_close(SelfDistilledWeights()(at_home), torch.ones(same.completion_mask.shape))
    cool = replace(at_home, temperature=0.5, scores=score_completions(given.model, same, temperature=0.5).numbers())
    torch.testing.assert_close(SelfDistilledWeights()(cool), torch.ones(same.completion_mask.shape))
    assert (SelfDistilledWeights(strength=0.0)(given) == 1).all()
    gone = SelfDistilledWeights(schedule=Schedule(decay_steps=50))
    assert (gone(replace(given, step=50)) == 1).all()
    assert (gone(replace(given, step=49)) != 1).any()
    nobody = replace(given.batch, context_lengths=torch.zeros(5, dtype=torch.long))
    assert (SelfDistilledWeights()(replace(given, batch=nobody)) == 1).all()


def test_options_leave_tokens_alone() -> None:
    given = inputs()
    all_of_them, reasoning = SelfDistilledWeights()(given), given.batch.reasoning_mask
    inside = SelfDistilledWeights(only_reasoning=True)(given)
    assert torch.equal(inside[reasoning], all_of_them[reasoning])
    assert (inside[~reasoning] == 1).all()
    negative = SelfDistilledWeights(only_negative=True)(given)
    assert (negative[ADVANTAGES >= 0] == 1).all()
    assert torch.equal(negative[3], all_of_them[3])


def test_the_schedule_by_hand() -> None:
    assert [Schedule()(step) for step in (0, 1000)] == [1.0, 1.0]
    assert [Schedule(4)(step) for step in (0, 1, 4, 9)] == [0.0, 0.25, 1.0, 1.0]
    assert [Schedule(0, 10, 5)(step) for step in (0, 10, 12, 15, 99)] == [1.0, 1.0, 0.6, 0.0, 0.0]


def test_actions_alone_are_reweighted() -> None:
    given, of = inputs(), SelfDistilledWeights()
    marked = given.batch.completion_mask & (torch.arange(given.batch.completion_mask.shape[1]) % 2 == 0)
    everywhere, acting = of(given), replace(given, marks={"causal": marked})
    found = ActionWeights(of, "causal")(acting)
    assert torch.equal(found[marked], everywhere[marked])
    assert (found[~marked] == 1).all()
    nothing = replace(given, marks={"causal": torch.zeros_like(marked)})
    assert (ActionWeights(of, "causal")(nothing) == 1).all()
    answers = ActionWeights(of, "answer")(given)
    assert torch.equal(answers != 1, (everywhere != 1) & given.batch.answer_mask)
    with pytest.raises(DataError, match=r"must know the 'causal' tokens .* but knows no marks"):
        ActionWeights(of, "causal")(given)
    assert context_of(ActionWeights(of)) == "solution"


def test_an_assigner_takes_them_and_the_sign_stays() -> None:
    given = inputs()
    gate = make_gate(tau=0.4, beta=2.0, floor=0.1, threshold="quantile")
    credit = CreditAssigner(SelfDistilledWeights(), gate, given.probe).assign(given)
    signs = ADVANTAGES[:, None].sign().expand_as(credit.token_advantages)
    assert torch.equal(credit.token_advantages.sign(), signs)
    torch.testing.assert_close(credit.token_advantages, ADVANTAGES[:, None] * SelfDistilledWeights()(given))


@pytest.mark.parametrize("wrong", [{"strength": 1.5}, {"clip": -0.1}, {"context": "hint"}])
def test_numbers_out_of_range_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        SelfDistilledWeights(**wrong)  # type: ignore[arg-type]


def test_without_contexts_one_sentence_says_so() -> None:
    given = replace(credit_inputs(random_batch(0), AnswerMeanProbe()), advantages=torch.ones(4))
    with pytest.raises(DataError, match="privileged context, but was called without"):
        SelfDistilledWeights()(given)
