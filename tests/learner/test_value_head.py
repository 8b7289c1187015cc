"""The value head beside the policy: what it says and learns, whatever the micro-batches, from step to step."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from oar.common.errors import ConfigError
from oar.learner.credit import Method
from oar.learner.distributed import ALONE
from oar.learner.value_head import LearnedValues
from oar.method.importance import ValueHead
from tests.learner.on_ranks import config, learner_of, start_model
from tests.models import random_batch, tiny_model

REWARDS = torch.tensor([1.0, 0.0, 0.5, 0.0, 1.0, 0.25])


def made(micro_batch_tokens: int = 4096, checkpoint: Path | None = None, **how: float) -> LearnedValues:
    cfg = replace(config().learner, micro_batch_tokens=micro_batch_tokens)
    return LearnedValues(ValueHead(**how), cfg, checkpoint)


def test_it_knows_nothing_of_the_step_that_it_values_whatever_runs_at_once() -> None:
    model, batch = tiny_model(0), random_batch(1, rows=6)
    one, parts = made(), made(30)
    assert not one.values(model, batch, REWARDS).any()
    assert not parts.values(model, batch, REWARDS).any()
    learned = one.learn()
    assert parts.learn() == pytest.approx(learned)
    earned = REWARDS[:, None].expand(batch.completion_mask.shape)[batch.completion_mask]
    assert learned["value_head/squared_error"] == pytest.approx(float(earned.square().mean()))  # from values of 0
    assert learned["value_head/reward_variance"] == pytest.approx(float(earned.var(correction=0)))
    values = one.values(model, batch, 100 * REWARDS)  # other rewards now, which it has not learned
    torch.testing.assert_close(parts.values(model, batch, REWARDS), values, atol=1e-4, rtol=1e-4)
    assert not values[~batch.completion_mask].any()
    # What it has seen once it tells again, better than the mean reward does.
    assert (earned - values[batch.completion_mask]).square().mean() < learned["value_head/reward_variance"]


def test_values_are_those_of_the_states_that_tokens_are_drawn_from() -> None:
    model, batch = tiny_model(0), random_batch(1, rows=6)
    head = made()
    head.values(model, batch, REWARDS)
    head.learn()
    assert head.sums is not None
    slope, constant = head.how.solved(head.sums)
    found = head.values(model, batch, REWARDS)
    for row, (prompt, length) in enumerate(zip(batch.prompt_lengths, batch.completion_lengths, strict=True)):
        ids = batch.input_ids[row, : prompt + length]
        with torch.no_grad():
            states = model.model(ids[None]).last_hidden_state[0, prompt - 1 : -1]
        torch.testing.assert_close(
            found[row, :length], (states.double() @ slope + constant).float(), atol=1e-4, rtol=1e-4
        )


def test_it_forgets_and_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    model, batches = tiny_model(0), [random_batch(seed, rows=6) for seed in (1, 2)]
    head = made(memory=0.5)
    seen = []
    for batch in batches:
        alone = made()
        for one in (head, alone):
            one.values(model, batch, REWARDS)
            one.learn()
        seen.append(alone.sums)
    torch.testing.assert_close(head.sums, 0.5 * seen[0] + seen[1])
    head.save(tmp_path)
    again = made(checkpoint=tmp_path, memory=0.5)
    assert torch.equal(again.values(model, batches[0], REWARDS), head.values(model, batches[0], REWARDS))


def test_a_run_values_before_it_learns(tmp_path: Path) -> None:
    learner = learner_of(config("method=value_head"), start_model(tmp_path), ALONE)
    first, second = learner.training_step(), learner.training_step()
    assert learner.beside.value_head is not None
    assert learner.beside.value_head.sums is not None
    assert first.metrics["value_head/squared_error"] > 0
    assert second.credited.token_advantages.std() > 0


def test_where_it_cannot_be_one_sentence_says_so() -> None:
    for override in ("learner.ranks=2", "learner.compute_dtype=bfloat16"):
        with pytest.raises(ConfigError, match=r"learner\.ranks must be 1 .* a reward model or a head"):
            Method.built(config("method=value_head", override))
