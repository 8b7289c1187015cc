"""Drawing ahead: it overlaps the update or a point of the curve, never reaches past it, and what is too old is dropped."""

import subprocess
import sys
import threading

import pytest

from oar.common.clock import Clock
from oar.common.errors import ConfigError, EngineError
from oar.config import TrainConfig, validated
from oar.learner.rollouts import GroupSampler, GroupStream
from tests.config.test_config import composed
from tests.conftest import PATIENCE_S, wait_until
from tests.learner.test_rollouts import SETTINGS, TASK, AnswerIsOne, ScriptedEngine

STALE = ("rollout.max_staleness=1", "learner.sampler_correction_cap=2")


class SlowEngine(ScriptedEngine):
    """Answers once `may_answer` is set; `answered` counts the requests that are over."""

    def __init__(self, may_answer=None, fails=False):
        super().__init__([1, 2] * 100)
        self.may_answer, self.fails, self.answered = may_answer, fails, 0

    def generate(self, prompts, sampling, *, seed, expected_version):
        groups = super().generate(prompts, sampling, seed=seed, expected_version=expected_version)
        assert self.may_answer is None or self.may_answer.wait(PATIENCE_S)
        if self.fails and expected_version == 0 and len(self.asked) > 1:
            raise EngineError("the engine is gone.")
        self.answered += 1
        return groups


def stream(engine, *overrides):
    cfg = validated(composed(*SETTINGS, "learner.steps=4", *overrides), TrainConfig)
    return GroupStream(GroupSampler(cfg, TASK, engine, AnswerIsOne()))


def asked(engine):
    return [version for _, _, version in engine.asked]


def test_without_staleness_every_step_is_drawn_when_its_turn_comes():
    engine = SlowEngine()
    groups = stream(engine)
    for step in range(3):
        drawn = groups.take(step, Clock())
        assert (drawn.step, drawn.version, drawn.metrics) == (step, step, {})
        with groups.drawing_next(step, Clock()):
            assert len(engine.asked) == step + 1
    assert asked(engine) == [0, 1, 2]


def test_the_next_step_is_drawn_during_the_update_with_the_weights_of_before():
    may_answer = threading.Event()
    may_answer.set()
    engine = SlowEngine(may_answer)
    groups, drawn = stream(engine, *STALE), []
    for step in range(4):
        drawn.append(groups.take(step, Clock()))
        may_answer.clear()  # were the draw not beside the block, it would wait for the block and the block for it
        with groups.drawing_next(step, Clock()):
            wait_until(lambda: len(engine.asked) == min(step + 2, 4), "the next step is not drawn")  # noqa: B023
            may_answer.set()
        assert engine.answered == min(step + 2, 4)  # nothing runs on, and nothing is drawn for a step that never comes
    assert [found.step for found in drawn] == [0, 1, 2, 3]
    assert [found.version for found in drawn] == [0, 0, 1, 2]
    assert asked(engine) == [0, 0, 1, 2]
    assert [found.metrics["train/staleness"] for found in drawn] == [0, 1, 1, 1]
    assert {found.metrics["train/dropped_completions"] for found in drawn} == {0}
    # The problems and seeds of a step are those it has without asynchrony.
    plain = SlowEngine()
    for step in range(4):
        stream(plain).take(step, Clock())
    assert [request[:2] for request in plain.asked] == [request[:2] for request in engine.asked]


@pytest.mark.parametrize("overrides", [(), STALE])
def test_beside_a_point_of_the_curve_the_groups_of_the_step_are_drawn_with_its_own_weights(overrides):
    may_answer = threading.Event()
    engine = SlowEngine(may_answer)
    groups = stream(engine, *overrides)
    with groups.drawing(2):
        wait_until(lambda: len(engine.asked) == 1, "the step is not drawn beside the block")
        may_answer.set()
    assert engine.answered == 1  # and nothing runs on
    clock = Clock()
    drawn = groups.take(2, clock)
    assert (drawn.step, drawn.version) == (2, 2)
    plain = SlowEngine()
    expected = stream(plain).take(2, Clock())
    assert engine.asked == plain.asked
    assert drawn.groups == expected.groups
    # What the draw took is the step's, though the step did not wait for it.
    seconds = clock.seconds()
    assert seconds["generation"] == drawn.seconds["generation"] > 0
    assert seconds["total"] > sum(drawn.seconds.values())


def test_after_the_last_step_nothing_is_drawn_beside_the_curve():
    engine = SlowEngine()
    groups = stream(engine)
    with groups.drawing(4):
        pass
    assert engine.asked == []


def test_what_is_drawn_ahead_already_is_not_drawn_beside_the_curve():
    engine = SlowEngine()
    groups = stream(engine, *STALE)
    groups.take(0, Clock())
    with groups.drawing_next(0, Clock()):
        pass
    with groups.drawing(1):
        pass
    assert asked(engine) == [0, 0]


def test_an_engine_that_fails_beside_the_curve_is_told_and_asked_again():
    engine = SlowEngine(fails=True)
    groups = stream(engine)
    groups.take(0, Clock())
    with pytest.raises(EngineError, match="gone"), groups.drawing(0):
        pass
    engine.fails = False
    assert groups.take(0, Clock()).version == 0
    assert len(engine.asked) == 3


def test_completions_that_are_too_old_are_dropped_and_counted():
    engine = SlowEngine()
    groups = stream(engine, *STALE)
    groups.take(0, Clock())
    with groups.drawing_next(0, Clock()):
        pass
    drawn = groups.take(2, Clock())
    assert (drawn.step, drawn.version) == (2, 2)
    assert drawn.metrics == {"train/staleness": 0, "train/dropped_completions": 12}
    assert {rollout.weight_version for group in drawn.groups for rollout in group.rollouts} == {2}


def test_an_engine_that_fails_is_told_after_the_block():
    groups, done = stream(SlowEngine(fails=True), *STALE), []
    groups.take(0, Clock())
    with pytest.raises(EngineError, match="gone"), groups.drawing_next(0, Clock()):
        done.append(True)
    assert done
    assert groups.take(1, Clock()).version == 1


def test_a_block_that_fails_does_not_wait_for_the_engine():
    may_answer = threading.Event()
    may_answer.set()
    groups = stream(SlowEngine(may_answer), *STALE)
    groups.take(0, Clock())
    may_answer.clear()
    with pytest.raises(ZeroDivisionError), groups.drawing_next(0, Clock()):
        1 / 0  # noqa: B018
    may_answer.set()


def test_a_process_whose_step_failed_does_not_wait_for_the_engine():
    """The draw sleeps for far longer than the process gets to end."""
    code = (
        "import time; from oar.common.clock import Clock\n"
        "from tests.learner.test_drawn_ahead import STALE, SlowEngine, stream\n"
        "groups = stream(SlowEngine(), *STALE); groups.take(0, Clock())\n"
        "groups.sampler.client.generate = lambda *_, **__: time.sleep(3600)\n"
        "with groups.drawing_next(0, Clock()):\n"
        "    raise SystemExit('the step failed')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr.strip()) == (1, "the step failed")


def test_staleness_without_a_correction_is_refused():
    with pytest.raises(ConfigError, match=r"sampler_correction_cap must be a number .*max_staleness"):
        validated(composed("rollout.max_staleness=1"), TrainConfig)
    with pytest.raises(ConfigError, match=r"rollout\.max_staleness must be 0 or 1"):
        validated(composed("rollout.max_staleness=2", "learner.sampler_correction_cap=2"), TrainConfig)
