"""Runs of sweeps gathered: what each table holds, worked out by hand, and that no run is dropped."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from experiments.stability.gathering import Gathered, collapse_of_reward, gather, planned_overrides
from oar.common.errors import DataError
from oar.config import TrainConfig, validated
from oar.runs.folder import finished
from tests.config.test_config import composed
from tests.experiments.made_runs import make_run, numbered_run, write_lines

SCORES = {"words1": [0.5, 1.0], "words2": [0.0, 0.25]}  # avg@k: 75, 12.5, mean 43.75


def made(folder: Path, number: int, seed: int, **settings: object) -> Path:
    return numbered_run(folder, number, "oar_g", seed, SCORES, **settings)


def recorded(folder: Path, *task: str, subdir: str = "${hydra.job.num}") -> None:
    """As much of Hydra's record of a multirun as is read."""
    record = {"hydra": {"sweep": {"subdir": subdir}, "overrides": {"hydra": [], "task": list(task)}}}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "multirun.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(record)))


def row(gathered: Gathered, run: str) -> dict[str, object]:
    (found,) = gathered.runs[gathered.runs["run"] == run].to_dict("records")
    return found


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """Four planned runs: one finished, one that stopped, one that was refused, one that the sweep has not come to."""
    folder = tmp_path / "gating"
    recorded(folder, "gating.tau=0.2,0.5", "seed=1,2", "gating.beta=1")
    made(folder, 0, 1, tau=0.2, beta=1.0)
    stopped = made(folder, 1, 2, tau=0.2, beta=1.0)
    (stopped / "evaluation.json").unlink()
    write_lines(stopped / "metrics.jsonl", [{"train/entropy": 0.5, "train/reward_mean": 0.25}] * 2)
    with (stopped / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "train/ent')  # killed while it wrote
    (folder / "2").mkdir()
    (folder / "servers1").mkdir()
    (folder / "servers1" / "engine.log").write_text("a server of several runs")
    return folder


def test_every_planned_run_is_a_row(sweep: Path) -> None:
    gathered = gather([sweep])
    states = dict(zip(gathered.runs["run"], gathered.runs["state"], strict=True))
    assert list(states) == ["gating/0", "gating/1", "gating/2", "gating/3"]
    assert list(states.values()) == ["finished", "unfinished", "not begun", "not begun"]
    assert list(gathered.finished) == ["gating/0"]
    stopped = row(gathered, "gating/1")
    assert stopped["why"] == "stands at step 2 of 3"
    assert stopped["reward"] == 0.25
    refused = row(gathered, "gating/2")
    assert refused["overrides"] == "gating.tau=0.5 seed=1 gating.beta=1"
    assert refused["seed"] == 1
    assert gathered.sweeps == {"gating": ["gating.tau=0.2,0.5", "seed=1,2", "gating.beta=1"]}


def test_a_run_that_goes_on_is_not_finished(sweep: Path) -> None:
    config = OmegaConf.load(sweep / "0" / "config.yaml")
    config.learner.steps = 5
    OmegaConf.save(config, sweep / "0" / "config.yaml")
    assert row(gather([sweep]), "gating/0")["why"] == "stands at step 3 of 5"


def test_an_evaluation_of_unknown_origin_is_not_of_this_run(sweep: Path) -> None:
    (sweep / "0" / "evaluation.json").write_text('{"results": {}}')
    assert finished(sweep / "0", validated(composed(), TrainConfig)) is None


def test_sweeps_of_one_name_stay_apart(tmp_path: Path) -> None:
    """Further seeds of a sweep stand in another folder, which may well be called as the first."""
    for place, seed in (("a", 1), ("b", 2)):
        made(tmp_path / place / "gating", 0, seed)
    gathered = gather([tmp_path / place / "gating" for place in "ab"])
    assert gathered.runs["run"].tolist() == [f"{tmp_path / place / 'gating'}/0" for place in "ab"]
    assert sorted(gathered.finished) == gathered.runs["run"].tolist()
    assert not gathered.metrics.duplicated(["run", "step", "metric"]).any()
    with pytest.raises(DataError, match="must name each folder once"):
        gather([tmp_path / "a" / "gating", tmp_path / "a" / "gating"])


def test_a_run_that_reached_its_reward_is_finished(sweep: Path) -> None:
    config = OmegaConf.load(sweep / "0" / "config.yaml")
    config.learner.steps = 300
    OmegaConf.save(config, sweep / "0" / "config.yaml")
    assert row(gather([sweep]), "gating/0")["state"] == "unfinished"
    evaluation = json.loads((sweep / "0" / "evaluation.json").read_text())
    evaluation["provenance"]["reached"] = True
    (sweep / "0" / "evaluation.json").write_text(json.dumps(evaluation))
    assert row(gather([sweep]), "gating/0")["state"] == "finished"


def test_settings_that_differ_are_columns(tmp_path: Path) -> None:
    for number, (gating, seed) in enumerate([("bilevel", 1), ("bilevel", 2), ("none", 1)]):
        run = made(tmp_path / "a", number, seed, gating=gating)
        config = OmegaConf.load(run / "config.yaml")
        config.output_dir = str(run)
        config.rollout = {"url": f"http://127.0.0.1:{number}", "threads": 1}
        if gating == "none":
            config.gating.boost = False  # a key that other versions do not have
        OmegaConf.save(config, run / "config.yaml")
    gathered = gather([tmp_path / "a"])
    assert gathered.varying == ["gating.name", "gating.boost"]
    assert gathered.runs["gating.name"].tolist() == ["bilevel", "bilevel", "none"]
    assert gathered.runs["seed"].tolist() == [1, 2, 1]
    assert set(gathered.metrics["gating.name"]) == {"bilevel", "none"}


def test_numbers_of_a_run_by_hand(tmp_path: Path) -> None:
    entropy = [1.0] * 10 + [0.05] * 10  # the mean of 9 steps falls below 0.2 once eight of them are low: at step 18
    reward = [0.8] * 15 + [0.2] * 5
    run = make_run(tmp_path, "oar_g", 1, SCORES, entropy=entropy, reward=reward, seconds=[1.0] * 20)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    first = {"step": 0, "eval/mean/avg@1": 40.0}
    lines = [first, *({**line, "weights/ess_ratio": line["step"] / 20} for line in lines)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    gathered = gather([run])
    found = row(gathered, "oar_g-seed1")
    assert found["avg@k words1"] == 75.0
    assert found["avg@k mean"] == 43.75
    assert found["pass@1 mean"] == 75.0  # right where any sample is: 2 of 2, 1 of 2
    assert found["entropy"] == pytest.approx(0.05)
    assert found["entropy_lowest"] == pytest.approx(0.05)
    assert found["reward"] == pytest.approx((4 * 0.8 + 5 * 0.2) / 9)
    assert found["ess_ratio"] == pytest.approx(16 / 20)
    assert (found["collapse_entropy"], found["collapse_step"]) == (18, 18)
    assert pd.isna(found["collapse_reward"])
    tidy = gathered.metrics
    assert len(tidy) == 1 + 20 * 3
    assert tidy[(tidy["step"] == 7) & (tidy["metric"] == "weights/ess_ratio")]["value"].tolist() == pytest.approx(
        [0.35]
    )
    assert tidy[tidy["step"] == 0]["metric"].tolist() == ["eval/mean/avg@1"]


@pytest.mark.parametrize(
    ("reward", "step"),
    [
        ([0.8] * 15 + [0.1] * 15, 21),  # 0.8 - 0.7 j / 9 < 0.4 from the sixth low step on
        ([0.8] * 15 + [0.1] * 15 + [0.8] * 9, None),  # it comes back
        ([0.8] * 15 + [0.1] * 12 + [0.3] * 9, 21),  # not far enough
        ([0.1] * 30 + [0.8] * 30, None),
        ([0.0] * 30, None),
        ([0.8] * 9, None),
        ([], None),
    ],
)
def test_collapse_of_the_reward(reward: list[float], step: int | None) -> None:
    assert collapse_of_reward(np.array(reward)) == step


@given(st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), max_size=40))
def test_collapse_is_what_its_sentence_says(reward: list[float]) -> None:
    """Naively: the first step from which on every mean of nine steps is below half of the highest before."""
    means = {step: sum(reward[step - 9 : step]) / 9 for step in range(9, len(reward) + 1)}
    found = None
    for step in means:
        before = [mean for at, mean in means.items() if at < step]
        after = [mean for at, mean in means.items() if at >= step]
        assume(not before or abs(max(after) - max(before) / 2) > 1e-9)  # sums of another order decide a tie
        if before and max(after) < max(before) / 2 and found is None:
            found = step
    assert collapse_of_reward(np.array(reward)) == found


def test_folders_are_put_together(tmp_path: Path) -> None:
    made(tmp_path / "first", 0, 1)
    made(tmp_path / "more", 0, 3, tau=0.5)
    gathered = gather([tmp_path / "first", tmp_path / "more"])
    assert gathered.runs["run"].tolist() == ["first/0", "more/0"]
    assert gathered.varying == ["gating.tau"]


def test_what_is_no_sweep_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not there"):
        gather([tmp_path / "missing"])
    with pytest.raises(DataError, match="must hold the folders of runs"):
        gather([tmp_path])
    (tmp_path / "0").mkdir()
    with pytest.raises(DataError, match=r"none of the 1 in .* has a config\.yaml"):
        gather([tmp_path])
    (tmp_path / "0").rmdir()
    made(tmp_path, 0, 1)
    made(tmp_path, 1, 2, measure="m2")
    with pytest.raises(DataError, match="evaluated with different settings"):
        gather([tmp_path])


def test_the_order_of_runs_is_hydras(tmp_path: Path) -> None:
    recorded(tmp_path, "gating.tau=0.2,0.5", "+note='a,b'", "seed=range(1,3)")
    assert planned_overrides(tmp_path) == {
        "0": ["gating.tau=0.2", "+note='a,b'", "seed=1"],
        "1": ["gating.tau=0.2", "+note='a,b'", "seed=2"],
        "2": ["gating.tau=0.5", "+note='a,b'", "seed=1"],
        "3": ["gating.tau=0.5", "+note='a,b'", "seed=2"],
    }
    recorded(tmp_path, "seed=1,2", subdir="${seed}")
    assert planned_overrides(tmp_path) == {}
