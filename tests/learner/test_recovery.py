"""When the engine is lost the work is repeated with another one, as often as is allowed, and nothing else is repeated."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from oar.common.errors import EngineError, EngineLostError, SyncError
from oar.config import RolloutConfig, TrainConfig, validated
from oar.learner.distributed import ALONE
from oar.learner.recovery import ENGINE_LOST, Recovery, Steady
from tests.config.test_config import composed

LOST = EngineLostError("the engine is gone.")


@pytest.fixture(scope="module")
def rollout() -> RolloutConfig:
    return validated(composed("rollout.restart=true", "rollout.max_restarts=2"), TrainConfig).rollout


class Scene:
    """A run whose work fails as `fates` tells, call by call; what happens is written down in order."""

    def __init__(self, cfg: RolloutConfig, folder: Path, *fates: Exception | None) -> None:
        self.fates, self.folder, self.steps = list(fates), folder, 0
        self.events: list[str] = []
        self.recovery = Recovery(cfg, folder, ALONE, lambda: self.steps, self.verify)

    def call(self, event: str) -> str:
        assert not (self.folder / ENGINE_LOST).exists(), "the learner went on before the supervisor was done"
        self.events.append(event)
        if (fate := self.fates.pop(0)) is not None:
            raise fate
        return event

    def verify(self, steady: Steady) -> None:
        steady(partial(self.call, "push"))
        steady(partial(self.call, "look"))

    def work(self) -> str:
        return self.recovery(lambda: self.call("work"))


@pytest.fixture
def supervised(tmp_path: Path) -> Iterator[Callable[[], int]]:
    """A supervisor that gives another engine each time it is asked; returns how often it was."""
    asked, over = [], threading.Event()

    def serve() -> None:
        while not over.wait(0.01):
            if (tmp_path / ENGINE_LOST).exists():
                asked.append((tmp_path / ENGINE_LOST).read_text())
                time.sleep(0.1)
                (tmp_path / ENGINE_LOST).unlink()

    thread = threading.Thread(target=serve)
    thread.start()
    yield lambda: len(asked)
    over.set()
    thread.join()
    assert all("the engine is gone" in reason for reason in asked)


NEW = [None, None]  # an engine is verified


def test_an_engine_is_verified_once_before_the_first_work(rollout: RolloutConfig, tmp_path: Path) -> None:
    scene = Scene(rollout, tmp_path, *NEW, None, None)
    assert (scene.work(), scene.work()) == ("work", "work")
    assert scene.events == ["push", "look", "work", "work"]


def test_the_weights_come_first_then_the_work_again(
    rollout: RolloutConfig, tmp_path: Path, supervised: Callable[[], int], capsys: pytest.CaptureFixture[str]
) -> None:
    scene = Scene(rollout, tmp_path, *NEW, LOST, *NEW, None)
    assert scene.work() == "work"
    assert scene.events == ["push", "look", "work"] * 2
    assert supervised() == 1
    assert "engine lost after step 0: the engine is gone. Restart 1 of this run" in capsys.readouterr().out


def test_an_engine_that_is_lost_again_while_it_is_verified(
    rollout: RolloutConfig, tmp_path: Path, supervised: Callable[[], int]
) -> None:
    scene = Scene(rollout, tmp_path, *NEW, LOST, None, LOST, *NEW, None)
    assert scene.work() == "work"
    assert scene.events == ["push", "look", "work", "push", "look", "push", "look", "work"]
    assert supervised() == 2


def test_too_many_restarts_without_a_finished_step_end_the_run(
    rollout: RolloutConfig, tmp_path: Path, supervised: Callable[[], int]
) -> None:
    scene = Scene(rollout, tmp_path, LOST, LOST, *NEW, LOST)
    with pytest.raises(EngineLostError, match="the engine is gone"):
        scene.work()
    assert supervised() == 2  # rollout.max_restarts


def test_a_finished_step_gives_the_restarts_back(
    rollout: RolloutConfig, tmp_path: Path, supervised: Callable[[], int]
) -> None:
    scene = Scene(rollout, tmp_path, *NEW, *[LOST, *NEW, None] * 6)
    for _ in range(3):
        scene.work()
        scene.work()  # generation and sync of one step, say
        scene.steps += 1
    assert supervised() == 6


def test_nothing_is_restarted_unasked(rollout: RolloutConfig, tmp_path: Path, supervised: Callable[[], int]) -> None:
    scene = Scene(replace(rollout, restart=False), tmp_path, *NEW, LOST)
    with pytest.raises(EngineLostError):
        scene.work()
    assert supervised() == 0


@pytest.mark.parametrize("error", [EngineError("a wrong version."), SyncError("other weights.")])
def test_an_engine_that_answers_wrongly_is_not_another_ones_work(
    error: Exception, rollout: RolloutConfig, tmp_path: Path, supervised: Callable[[], int]
) -> None:
    scene = Scene(rollout, tmp_path, *NEW, error)
    with pytest.raises(type(error)):
        scene.work()
    assert supervised() == 0


def test_a_supervisor_that_does_not_answer_is_not_waited_for_for_ever(
    rollout: RolloutConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oar.learner.recovery.ENDING_S", 0.2)
    scene = Scene(replace(rollout, startup_timeout_s=0.1), tmp_path, LOST)
    with pytest.raises(EngineError, match=r"no other engine .*rollout.startup_timeout_s"):
        scene.work()
