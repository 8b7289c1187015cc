"""Training steps of methods that compare completions, or that have a loss beside the policy's."""

from pathlib import Path

import pytest
import torch

from oar.common.errors import ConfigError
from oar.learner.distributed import ALONE
from tests.learner import own_methods
from tests.learner.on_ranks import config, learner_of, start_model, train

OWN = "allow_targets=[tests.learner.own_methods]"
COMPARING = "method.estimator={_target_: tests.learner.own_methods.AgainstTheGroup}"
BESIDE = "method.auxiliary={_target_: tests.learner.own_methods.Imitation, %s}"


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return start_model(tmp_path_factory.mktemp("start"))


def test_a_signal_that_compares_sees_all_completions_once(start: Path) -> None:
    own_methods.SEEN.clear()
    learner = learner_of(config(OWN, COMPARING), start, ALONE)
    report = learner.training_step()
    assert own_methods.SEEN == [24]
    mask, entropy = report.graded.batch.completion_mask, report.credited.entropy
    for first in range(0, 24, 4):
        group = slice(first, first + 4)
        expected = entropy[group] / entropy[group][mask[group]].mean()
        shared = report.advantages[group, None] * expected * mask[group]
        torch.testing.assert_close(report.credited.token_advantages[group] * mask[group], shared)
    assert report.metrics["credit/mean_abs_advantage"] > 0


def test_micro_batches_change_nothing_for_a_signal_that_compares(start: Path) -> None:
    (_, one), (_, other) = (
        train(start, ALONE, OWN, COMPARING, f"learner.micro_batch_tokens={tokens}") for tokens in (100, 5000)
    )
    for name, weight in one.items():
        torch.testing.assert_close(other[name], weight, atol=1e-6, rtol=0)
    (_, plain) = train(start, ALONE)
    assert any((plain[name] - weight).abs().max() > 1e-5 for name, weight in one.items())


def test_a_loss_beside_the_policys_is_the_gradient_of_that_loss(start: Path) -> None:
    """At the first step, where the ratio is 1: -strength x logprob of the tokens of A > 0 adds `strength` to their advantage."""
    learners = [
        learner_of(config(OWN, *overrides, "learner.max_grad_norm=1e9", "learner.weight_decay=0"), start, ALONE)
        for overrides in ([BESIDE % "strength: 0.5"], [BESIDE % "strength: 0.5, since: 1"], ["method=grpo"])
    ]
    gradients = []
    for learner in learners:
        report = learner.training_step()
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in learner.model.parameters()]))
    torch.testing.assert_close(gradients[1], gradients[2], atol=1e-8, rtol=1e-5)  # its schedule has not begun
    naive = learner_of(config(), start, ALONE).model
    batch, loss = report.graded.batch, torch.zeros(())
    for row in range(24):
        if report.advantages[row] > 0:
            begin, length = int(batch.prompt_lengths[row]), int(batch.completion_lengths[row])
            ids = batch.input_ids[row : row + 1, : begin + length]
            logprobs = naive(input_ids=ids).logits[0, begin - 1 : -1].log_softmax(-1)
            loss = loss - 0.5 * logprobs.gather(1, ids[0, begin:, None]).mean() / 24
    loss.backward()
    expected = torch.cat([parameter.grad.flatten() for parameter in naive.parameters()])
    torch.testing.assert_close(gradients[0] - gradients[2], expected, atol=1e-6, rtol=1e-3)


def test_groups_without_an_advantage_are_asked_too(start: Path) -> None:
    """A loss beside the policy's may teach where rewards cannot."""
    nothing_earned = ("reward=length", "reward.length.weight=0")
    learner = learner_of(config(OWN, BESIDE % "of_all: true", *nothing_earned), start, ALONE)
    report = learner.training_step()
    assert report.metrics["train/zero_advantage_groups"] == 1
    assert report.metrics["train/grad_norm"] > 0.01


def test_a_part_that_is_no_such_class_is_refused(start: Path) -> None:
    with pytest.raises(ConfigError, match=r"method\.surrogate"):
        learner_of(config("method.surrogate={_target_: os.system}"), start, ALONE)
