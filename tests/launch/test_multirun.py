"""The runs of a multirun, without an engine: one that fails ends no other, says how it runs alone, and what it costs them."""

import re
import shlex
import sys
from pathlib import Path

import pytest

from experiments.train import main
from oar.common.errors import EngineError
from oar.config import TrainConfig, validated
from oar.launch import multirun as sweep
from oar.rollout.server.fleet import KeptFleet
from tests.config.test_config import composed


class CountedFleet(KeptFleet):
    """How often it was stopped."""

    stops = 0

    def stop(self) -> None:
        self.stops += 1


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> CountedFleet:
    found = CountedFleet()
    monkeypatch.setattr(sweep, "KEPT", found)
    return found


def multirun(monkeypatch: pytest.MonkeyPatch, folder: Path, *overrides: str) -> None:
    monkeypatch.setattr(
        "logging.config.dictConfig", lambda config: None
    )  # it would silence the loggers of all other tests
    monkeypatch.setattr(sys, "argv", ["train", "-m", *overrides, f"hydra.sweep.dir={folder}"])
    main()


def test_the_others_run_on(
    kept: CountedFleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second is refused and leaves the servers alone; the third dies with them; the fourth runs."""
    begun: list[tuple[float, Path]] = []

    def train(cfg: TrainConfig, folder: Path, servers: KeptFleet) -> int:
        assert servers is kept
        begun.append((cfg.gating.tau, folder))
        if cfg.gating.tau == 0.3:
            raise EngineError("The engine's process ended.")
        return int(cfg.gating.tau == 0.4)

    monkeypatch.setattr(sweep, "train", train)
    with pytest.raises(SystemExit) as ended:
        multirun(monkeypatch, tmp_path, "gating.tau=0.2,7,0.3,0.4,0.5", "data.source.tiers=[words1,words2]")
    assert ended.value.code == 1
    assert begun == [(tau, tmp_path / str(number)) for tau, number in ((0.2, 0), (0.3, 2), (0.4, 3), (0.5, 4))]
    assert kept.stops == 2
    said = capsys.readouterr().err
    assert "gating.tau must be between 0 and 1, but is 7.0." in said
    assert "The learner ended with exit code 1" in said
    alone = re.findall(r"It runs alone with: python -m experiments\.train (.*)", said)
    assert len(alone) == 3
    again = validated(composed(*shlex.split(alone[1])), TrainConfig)
    assert (again.gating.tau, again.output_dir, again.resume) == (0.3, str(tmp_path / "2"), "auto")
    assert again.data.source["tiers"] == ["words1", "words2"]


def test_what_has_finished_is_left_as_it_is(
    kept: CountedFleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begun, told = [], []

    def train(cfg: TrainConfig, folder: Path, servers: KeptFleet) -> int:
        begun.append(cfg.seed)
        told.append((cfg.tracking.name, cfg.tracking.group))
        return 0

    monkeypatch.setattr(sweep, "train", train)
    monkeypatch.setattr(sweep, "finished", lambda folder, cfg: {} if cfg.seed == 1 else None)
    multirun(monkeypatch, tmp_path, "seed=1,2", "resume=auto")
    assert begun == [2]
    assert "has finished before" in capsys.readouterr().out
    multirun(monkeypatch, tmp_path, "seed=1,2")  # resume=never: the run itself refuses a folder that holds one
    assert begun == [2, 1, 2]
    assert told[1:] == [("grpo-seed1", tmp_path.name), ("grpo-seed2", tmp_path.name)]
    assert kept.stops == 0


def test_an_interruption_ends_all(kept: CountedFleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = []

    def train(cfg: TrainConfig, folder: Path, servers: KeptFleet) -> int:
        begun.append(cfg.seed)
        raise KeyboardInterrupt

    monkeypatch.setattr(sweep, "train", train)
    with pytest.raises(SystemExit) as ended:
        multirun(monkeypatch, tmp_path, "seed=1,2")
    assert ended.value.code == 130
    assert begun == [1]
    assert kept.stops == 1
