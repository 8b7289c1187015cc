"""Training steps on rewards of every kind, with completions that need no engine."""

import math
from pathlib import Path

import pytest
import torch

from oar.common.errors import ConfigError
from oar.common.seeding import generator
from oar.learner.distributed import ALONE
from oar.learner.samples import sample_rows
from oar.method.advantages import group_advantages
from tests.learner.on_ranks import config, learner_of, start_model, train


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return start_model(tmp_path_factory.mktemp("start"))


def test_what_is_right_earns_one_and_nothing_else_is_changed_by_a_term_of_no_weight(start: Path) -> None:
    plain, weights = train(start, ALONE)
    beside, same = train(start, ALONE, "reward=[answer,length]", "reward.length.weight=0")
    assert all(torch.equal(same[name], weight) for name, weight in weights.items())
    for metrics, other in zip(plain, beside, strict=True):
        assert metrics["train/reward_mean"] == metrics["train/accuracy"] == pytest.approx(metrics["reward/answer"])
        assert other == metrics | {"reward/length": other["reward/length"]}
        assert 0 < other["reward/length"] < 1


def test_a_fraction_moves_the_weights(start: Path) -> None:
    (_, plain), (metrics, learned) = train(start, ALONE), train(start, ALONE, "reward=length")
    assert any(not torch.equal(plain[name], weight) for name, weight in learned.items())
    assert metrics[0]["train/reward_mean"] == pytest.approx(metrics[0]["reward/length"])
    assert metrics[0]["train/zero_advantage_groups"] < 1


def test_streams_of_rewards_move_the_weights_each_by_itself(start: Path) -> None:
    (_, alone), (_, one_stream) = train(start, ALONE), train(start, ALONE, "method.decoupled_rewards=true")
    assert all(torch.equal(alone[name], weight) for name, weight in one_stream.items())
    rewards = ("reward=[answer,length]", "reward.length.weight=0.5")
    learner = learner_of(config(*rewards, "method.decoupled_rewards=true"), start, ALONE)
    report = learner.training_step()
    earned = [[terms[name] for terms in report.graded.terms] for name in ("answer", "length")]
    answer, length = (group_advantages(torch.tensor(values), 4) for values in earned)
    torch.testing.assert_close(report.advantages, (answer + 0.5 * length) / 1.5)
    assert not torch.allclose(report.advantages, group_advantages(report.graded.rewards, 4), atol=0.1)


def test_streams_have_no_common_penalty() -> None:
    with pytest.raises(ConfigError, match=r"learner\.overlong must be keep or mask where method\.decoupled_rewards"):
        config("method=crpo", "learner.overlong=soft_penalty")
    with pytest.raises(ConfigError, match=r"reward must be terms of which one has a weight"):
        config("method=crpo", "reward.answer.weight=0", "reward.format.weight=0")


def test_generic_members_are_learned_under_their_own_prompt(start: Path) -> None:
    """Against a loss written out at the first step, where the ratio is 1. What they earn is told beside what the others do."""
    generic = "method.generic={members: 1, identity: 0.5}"
    learner = learner_of(config(generic, "learner.max_grad_norm=1e9"), start, ALONE)
    report = learner.training_step()
    graded, batch = report.graded, report.graded.batch
    own, plain = torch.arange(24) % 4 < 3, learner_of(config(), start, ALONE).model
    # The sampler found all tokens alike likely, so a coin of one half decides whose a completion is.
    doubt = torch.where(own, 1 - 0.5 * math.log(2), 1.0)
    torch.testing.assert_close(report.advantages, group_advantages(graded.rewards, 4) * doubt)
    loss = torch.zeros(())
    for row in range(24):
        length = int(batch.completion_lengths[row])
        encode = learner.task.encode_prompt if own[row] else learner.task.encode_generic
        prompt, said = encode(graded.problems[row]), batch.completion_ids[row, :length]
        ids = torch.tensor([[*prompt, *said.tolist()]])
        logprobs = plain(input_ids=ids).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        loss = loss - report.advantages[row] * logprobs.gather(1, said[:, None]).mean() / 24
    loss.backward()
    for one, other in zip(learner.model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, atol=1e-6, rtol=1e-3)
    assert report.metrics["train/reward_mean"] == pytest.approx(float(graded.rewards[own].mean()))
    assert report.metrics["generic/reward_mean"] == pytest.approx(float(graded.rewards[~own].mean()))
    assert report.metrics["generic/accuracy"] == pytest.approx(float(graded.correct[~own].float().mean()))
    prompts = {row["row"]: row["prompt"] for row in sample_rows(learner.task, report, 24)}
    assert any(own[row] for row in prompts)
    assert not all(own[row] for row in prompts)
    for row, shown in prompts.items():
        problem = graded.problems[row]
        assert shown == problem.question if own[row] else problem.question.endswith(f". {shown}")


def test_generic_members_are_some_of_a_group() -> None:
    with pytest.raises(ConfigError, match=r"method\.generic\.members must be below learner\.num_generations \(4\)"):
        config("method.generic={members: 4, identity: 0.02}")
    for wrong in ("{members: 0, identity: 0.02}", "{members: 1, identity: -1}"):
        with pytest.raises(ConfigError, match=r"method\.generic\."):
            config(f"method.generic={wrong}")


def test_coins_are_those_of_run_and_step(start: Path) -> None:
    metrics, _ = train(start, ALONE, "method=random_reward")
    coins = [float((torch.rand(24, generator=generator(1, "reward", step)) < 0.5).float().mean()) for step in range(3)]
    assert [step["train/reward_mean"] for step in metrics] == pytest.approx(coins)


def test_a_kept_completion_knows_what_it_earned(start: Path) -> None:
    learner = learner_of(config("reward=[answer,format]", "reward.format.weight=0.5"), start, ALONE)
    rows = sample_rows(learner.task, learner.training_step(), 24)
    for row in rows:
        earned = {"answer": float(row["correct"]), "format": float("####" in row["completion"])}
        assert row["rewards"] == earned
        assert row["reward"] == earned["answer"] + 0.5 * earned["format"]
    assert {row["reward"] for row in rows} == {0.0, 0.5, 1.5}
