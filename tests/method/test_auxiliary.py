"""Losses beside the policy's: divergences from a teacher against whole softmaxes and autograd, and cloning."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from oar.common.errors import ConfigError, DataError
from oar.method.auxiliary import CertifiedCloning, NoPolicyLoss, TeacherDivergence, TopDivergence
from oar.method.auxiliary.sdpg import kl_from_teacher
from oar.method.auxiliary.sdpo import with_tail
from oar.method.forward import projection
from oar.method.forward.divergence import divergences
from oar.method.importance import CreditInputs, Schedule
from oar.method.probes import AnswerMeanProbe
from tests.models import credit_inputs, in_contexts, random_batch, tiny_model

ADVANTAGES = torch.tensor([0.7, -1.2, 0.0, -0.4])
ALONE = TeacherDivergence(divergence=1.0, reference=0.0)


def inputs(*, without: tuple[int, ...] = (), teacher: int | None = 3, seed: int = 0) -> CreditInputs:
    batch = in_contexts(random_batch(seed), without=without)
    given = credit_inputs(batch, AnswerMeanProbe(), keep_graph=True)
    taught_by = None if teacher is None else tiny_model(teacher)
    return replace(given, advantages=ADVANTAGES, teacher=taught_by, reference=tiny_model(5))


def logprobs(model: nn.Module, before: Tensor, ids: Tensor) -> Tensor:
    """(T, V) of one completion."""
    found: Tensor = model(torch.cat([before, ids])[None]).logits[0, len(before) - 1 : -1].log_softmax(dim=-1)
    return found


def plain(given: CreditInputs, measure) -> Tensor:
    """`measure` of student and teacher by whole forwards, (B, T), with a graph to the student."""
    rows = []
    for row in range(len(given.batch)):
        prompt = given.batch.input_ids[row, : given.batch.prompt_lengths[row]]
        context = given.batch.context_ids[row, : given.batch.context_lengths[row]]
        ids = given.batch.completion_ids[row, : given.batch.completion_lengths[row]]
        found = torch.zeros(given.batch.completion_ids.shape[1])
        if len(context):
            with torch.no_grad():
                target = logprobs(given.teacher or given.model, context, ids)
            found = torch.cat([measure(logprobs(given.model, prompt, ids), target), found[len(ids) :]])
        rows.append(found)
    return torch.stack(rows)


def gradients(loss: Tensor, model: nn.Module) -> Tensor:
    weights = torch.linspace(0.5, 1.5, loss.numel()).reshape(loss.shape)  # every token counts differently
    found = torch.autograd.grad((loss * weights).sum(), list(model.parameters()), allow_unused=True, retain_graph=True)
    return torch.cat([one.flatten() for one in found if one is not None])


def whole_kl(student: Tensor, teacher: Tensor) -> Tensor:
    return (student.exp() * (student - teacher)).sum(dim=-1)


def jensen_shannon(student: Tensor, teacher: Tensor) -> Tensor:
    p, q = student.exp(), teacher.exp()
    mean = (p + q) / 2
    return ((p * (p / mean).log()).sum(-1) + (q * (q / mean).log()).sum(-1)) / 2


MEASURES = {
    "sdpg": (ALONE, whole_kl),
    "sdpo, all tokens, reverse": (TopDivergence(alpha=1.0, top=40), whole_kl),
    "sdpo, all tokens, forward": (TopDivergence(alpha=0.0, top=40), lambda own, other: whole_kl(other, own)),
    "sdpo, all tokens, between": (TopDivergence(alpha=0.5, top=40), jensen_shannon),
}


@pytest.mark.parametrize("name", MEASURES)
def test_value_and_gradient_are_those_of_whole_softmaxes(name: str) -> None:
    loss, measure = MEASURES[name]
    given = inputs(without=(1,))
    found, expected = loss(given), plain(given, measure)
    torch.testing.assert_close(found, expected, atol=3e-5, rtol=1e-4)
    assert (found[1] == 0).all()
    assert expected.max() > 0.1
    torch.testing.assert_close(gradients(found, given.model), gradients(expected, given.model), atol=3e-4, rtol=1e-3)


def test_blocks_of_tokens_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    given = inputs()
    whole = ALONE(given)
    expected = gradients(whole, given.model)
    monkeypatch.setattr(projection, "CPU_BLOCK", 3 * 40)  # three tokens
    given = inputs()
    parts = ALONE(given)
    torch.testing.assert_close(parts, whole)
    torch.testing.assert_close(gradients(parts, given.model), expected, atol=1e-5, rtol=1e-4)


def test_each_completion_has_its_own() -> None:
    given = inputs(without=(2,))
    for loss in (TeacherDivergence(0.3, 0.2), TopDivergence(top=5), TopDivergence(top=5, max_tokens_per_forward=1)):
        together = loss(given)
        for row in range(4):
            index = torch.tensor([row])
            alone = credit_inputs(given.batch.rows(index), given.probe, model=given.model, keep_graph=True)
            alone = replace(alone, advantages=ADVANTAGES[index], teacher=given.teacher, reference=given.reference)
            torch.testing.assert_close(loss(alone)[0], together[row], atol=2e-5, rtol=1e-4)


def test_a_teacher_who_sees_what_the_student_sees_has_nothing_to_say() -> None:
    given = inputs(teacher=None)
    same = replace(given.batch, context_ids=given.batch.input_ids, context_lengths=given.batch.prompt_lengths)
    for loss in (ALONE, TopDivergence(top=5)):
        found = loss(replace(given, batch=same))
        assert found.abs().max() < 1e-5
        assert gradients(found, given.model).abs().max() < 1e-3


def test_the_gradient_of_the_kl_is_that_of_a_policy_rewarded_by_the_teacher() -> None:
    """E over v ~ p of grad log p(v) x (log p(v) - log q(v) - KL)."""
    torch.manual_seed(0)
    scores, target = torch.randn(6, requires_grad=True), torch.randn(6).log_softmax(-1)
    own = scores.log_softmax(-1)
    kl = whole_kl(own, target)
    (expected,) = torch.autograd.grad(kl, scores, retain_graph=True)
    advantage = (own - target - kl).detach()
    (found,) = torch.autograd.grad((own.exp().detach() * own * advantage).sum(), scores)
    torch.testing.assert_close(found, expected)


def test_gate_schedule_and_the_largest_divergence() -> None:
    given = inputs()
    everywhere = ALONE(given)
    better = replace(ALONE, only_better=True)(given)
    torch.testing.assert_close(better[0], everywhere[0])
    assert (better[1:] == 0).all()
    halved = replace(ALONE, schedule=Schedule(warmup_steps=4))
    torch.testing.assert_close(halved(replace(given, step=2)), everywhere / 2)
    assert (halved(given) == 0).all()
    model = tiny_model()
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(1000)
    far = ALONE(replace(given, teacher=model))
    assert far.max() == 20


@pytest.mark.parametrize(
    ("name", "expected"),
    [("urkl", 0.02), ("ufkl", 1.2214027 - 0.2), ("rkl", 0.32), ("fkl", 1.2214027)],
)
def test_the_term_that_holds_the_policy_near_the_start(name: str, expected: float) -> None:
    given = inputs()
    loss = TeacherDivergence(divergence=0.0, reference=0.5, reference_kl=name)
    assert loss.needs_reference
    assert not replace(loss, reference=0.0).needs_reference
    with torch.no_grad():
        start = credit_inputs(given.batch, given.probe, model=given.reference).scores.logprobs
    shifted = replace(given, scores=replace(given.scores, logprobs=start - 0.2))
    found = loss(shifted)
    mask = given.batch.completion_mask
    torch.testing.assert_close(found[mask], torch.full((int(mask.sum()),), 0.5 * expected), atol=1e-4, rtol=1e-4)
    assert (found[~mask] == 0).all()


def test_the_tail_by_hand() -> None:
    top = torch.tensor([[0.5, 0.2]]).log()
    torch.testing.assert_close(with_tail(top).exp(), torch.tensor([[0.5, 0.2, 0.3]]))
    assert torch.isfinite(with_tail(torch.tensor([[0.6, 0.4]]).log())).all()
    # The student's two likeliest of four tokens, and the rest: KL(T || S) = .3 ln(.3/.5) + .3 ln(.3/.2) + .4 ln(.4/.3).
    student, teacher = torch.tensor([[0.5, 0.1, 0.2, 0.2]]).log(), torch.tensor([[0.3, 0.1, 0.3, 0.3]]).log()
    student[0, 3] -= 1e-4  # the third token is the second likeliest
    found = TopDivergence(alpha=0.0, top=2).divergence(student, teacher)
    assert float(found) == pytest.approx(-0.153248 + 0.121640 + 0.115073, abs=1e-3)


def test_the_ratio_multiplies_and_is_a_constant() -> None:
    given, loss = inputs(), TopDivergence(top=7)
    old = given.scores.logprobs.detach() - torch.tensor([0.0, 0.5, 3.0, -0.5])[:, None]
    factors = torch.tensor([1.0, 1.6487213, 2.0, 0.6065307])[:, None]
    found = loss(replace(given, old_logprobs=old))
    torch.testing.assert_close(found, loss(given) * factors)
    torch.testing.assert_close(gradients(found, given.model), gradients(loss(given) * factors, given.model))


def test_no_policy_loss_is_none() -> None:
    assert (NoPolicyLoss()(inputs()) == 0).all()


def test_what_two_gates_certify_is_cloned() -> None:
    given = credit_inputs(random_batch(0, unanswered=(2,)), AnswerMeanProbe(), keep_graph=True)
    given = replace(given, correct=torch.tensor([True, False, True, True]))
    found = CertifiedCloning(0.1)(given)
    torch.testing.assert_close(found[[0, 3]], -0.1 * given.scores.logprobs[[0, 3]])
    assert (found[[1, 2]] == 0).all()  # wrong, and without an answer span
    with pytest.raises(DataError, match="which completions are right"):
        CertifiedCloning()(replace(given, correct=None))


def test_what_is_missing_is_said() -> None:
    given = inputs()
    with pytest.raises(DataError, match="starting model"):
        TeacherDivergence()(replace(given, reference=None))
    with pytest.raises(DataError, match="update's own forward"):
        ALONE(replace(given, scores=given.scores.numbers()))
    with pytest.raises(DataError, match="privileged context"):
        TopDivergence()(replace(given, batch=random_batch(0)))


@pytest.mark.parametrize(
    ("loss", "wrong"),
    [
        (TeacherDivergence, {"divergence": -1.0}),
        (TeacherDivergence, {"reference_kl": "k3"}),
        (TeacherDivergence, {"context": "hint"}),
        (TopDivergence, {"alpha": 1.5}),
        (TopDivergence, {"top": 0}),
        (TopDivergence, {"context": "hint"}),
        (CertifiedCloning, {"gate": "luck"}),
        (CertifiedCloning, {"weight": -0.1}),
    ],
)
def test_what_cannot_be_is_refused(loss: type, wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        loss(**wrong)


def test_states_of_any_width_meet_at_the_vocabulary() -> None:
    """A teacher may have another width than the student."""
    torch.manual_seed(0)
    student, teacher = torch.randn(5, 8), torch.randn(5, 6)
    heads = nn.Linear(8, 11, bias=False), nn.Linear(6, 11)
    found = divergences(kl_from_teacher, student, teacher, *heads, 2.0)
    expected = whole_kl((heads[0](student) / 2).log_softmax(-1), (heads[1](teacher) / 2).log_softmax(-1))
    torch.testing.assert_close(found, expected)
