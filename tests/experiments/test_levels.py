"""Levels of a sweep compared: the differences by hand, paired by seed, and what cannot be compared is refused."""

from pathlib import Path

import numpy as np
import pytest
from omegaconf import OmegaConf

from experiments.stability.gathering import Gathered, gather
from experiments.stability.levels import compare_levels, deciding_keys
from oar.common.errors import ConfigError, DataError
from oar.statistics.intervals import student_interval
from tests.experiments.made_runs import numbered_run

# 75 % and 50 %, every problem by a quarter
BETTER, WORSE = {"a": [0.75, 0.75, 1.0, 0.5]}, {"a": [0.5, 0.5, 0.75, 0.25]}


def swept(folder: Path, *runs: tuple[int, dict[str, object], dict[str, list[float]]], samples: bool = True) -> Gathered:
    for number, (seed, settings, scores) in enumerate(runs):
        numbered_run(folder, number, "oar_g", seed, scores, keep_samples=samples, **settings)
    return gather([folder])


def test_differences_are_paired_by_seed(tmp_path: Path) -> None:
    """Seed 2 is a bad one for both; seed 3 has run at the reference alone and is no part of the difference."""
    bad = {"a": [0.25, 0.25, 0.5, 0.0]}
    bad_better = {"a": [0.5, 0.5, 0.75, 0.25]}
    gathered = swept(
        tmp_path,
        (1, {"tau": 0.4}, WORSE),
        (1, {"tau": 0.2}, BETTER),
        (2, {"tau": 0.4}, bad),
        (2, {"tau": 0.2}, bad_better),
        (3, {"tau": 0.4}, BETTER),
    )
    levels = compare_levels(gathered, ["gating.tau"], [0.4])
    assert levels.values == [[0.2, 0.4]]
    low, reference = levels.cells[0.2,], levels.cells[0.4,]
    assert low["avg@k"] == pytest.approx((75 + 50) / 2)
    assert reference["avg@k"] == pytest.approx((50 + 25 + 75) / 3)
    assert reference["avg@k low"] < reference["avg@k"] < reference["avg@k high"]
    assert np.isnan(reference["difference avg@k"])
    found = [low[f"difference avg@k{end}"] for end in ("", " low", " high")]
    assert found == pytest.approx([25, 25, 25])  # every problem under every seed: only pairing shows it
    assert (low["seeds"], reference["seeds"]) == ("1, 2", "1, 2, 3")
    assert low["difference avg@k interval over"] == "problems and seeds"


def test_without_completions_only_seeds_are_drawn(tmp_path: Path) -> None:
    gathered = swept(
        tmp_path,
        (1, {"tau": 0.4}, WORSE),
        (2, {"tau": 0.4}, WORSE),
        (1, {"tau": 0.2}, BETTER),
        (2, {"tau": 0.2}, {"a": [1.0] * 4}),
        (1, {"tau": 0.9}, BETTER),
        samples=False,
    )
    cells = compare_levels(gathered, ["gating.tau"], [0.4]).cells
    found = [cells[0.2,][f"difference avg@k{end}"] for end in ("", " student low", " student high")]
    assert found == pytest.approx([37.5, *student_interval([25.0, 50.0])])
    ends = [cells[0.2,][f"difference avg@k {end}"] for end in ("low", "high")]
    assert ends == [-100.0, 100.0]  # no difference is larger
    assert cells[0.2,]["difference avg@k interval over"] == "seeds"
    assert cells[0.9,]["difference avg@k"] == 25.0
    assert np.isnan(cells[0.9,]["difference avg@k low"])
    assert cells[0.9,]["avg@k interval over"] == "one seed, no interval"


def test_a_level_whose_runs_failed_is_a_level(tmp_path: Path) -> None:
    swept(tmp_path, (1, {"tau": 0.4}, WORSE), (1, {"tau": 0.2}, BETTER))
    (tmp_path / "1" / "evaluation.json").unlink()
    cells = compare_levels(gather([tmp_path]), ["gating.tau"], None).cells
    assert [cells[0.2,][name] for name in ("runs", "begun", "finished")] == [1, 1, 0]
    assert np.isnan(cells[0.2,]["avg@k"])
    with pytest.raises(ConfigError, match="at a level with a finished run"):
        compare_levels(gather([tmp_path]), ["gating.tau"], [0.2])
    (tmp_path / "0" / "evaluation.json").unlink()
    with pytest.raises(DataError, match="No run has finished"):
        compare_levels(gather([tmp_path]), ["gating.tau"], None)


def test_null_is_a_level_like_any_other(tmp_path: Path) -> None:
    gathered = swept(tmp_path, (1, {"tau": None}, WORSE), (2, {"tau": None}, WORSE), (1, {"tau": 0.2}, BETTER))
    for reference in ([None], ["null"]):
        levels = compare_levels(gathered, ["gating.tau"], reference)
        assert {level: int(levels.cells[level]["finished"]) for level in levels.cells} == {("null",): 2, ("0.2",): 1}
    assert compare_levels(gathered, ["gating.tau"], [0.2]).cells["null",]["difference avg@k"] == pytest.approx(-25)


def test_keys_that_decide_the_others_are_found(tmp_path: Path) -> None:
    variants = [
        ("bilevel", True, True),
        ("boost_only", False, True),
        ("suppress_only", True, False),
        ("none", False, False),
    ]
    gathered = swept(tmp_path, *((1, {"gating": name}, BETTER) for name, _, _ in variants))
    for number, (_, suppress, boost) in enumerate(variants):
        config = OmegaConf.load(tmp_path / str(number) / "config.yaml")
        config.gating.suppress, config.gating.boost = suppress, boost
        OmegaConf.save(config, tmp_path / str(number) / "config.yaml")
    gathered = gather([tmp_path])
    assert gathered.varying == ["gating.name", "gating.suppress", "gating.boost"]
    assert deciding_keys(gathered) == ["gating.name"]
    levels = compare_levels(gathered, ["gating.name"], None, usual=("bilevel",))
    assert levels.values == [["bilevel", "boost_only", "suppress_only", "none"]]
    assert levels.reference == ("bilevel",)
    assert compare_levels(gathered, ["gating.name"], ["none"], usual=("bilevel",)).reference == ("none",)
    assert compare_levels(gathered, ["gating.name"], None, usual=("warmup",)).reference == ("bilevel",)


def test_a_grid_has_two_keys(tmp_path: Path) -> None:
    grid = [(tau, beta) for tau in (0.4, 0.2) for beta in (4.0, 1.0)]
    gathered = swept(tmp_path, *((1, {"tau": tau, "beta": beta}, BETTER) for tau, beta in grid))
    assert deciding_keys(gathered) == ["gating.tau", "gating.beta"]
    levels = compare_levels(gathered, ["gating.tau", "gating.beta"], [0.4, 1])
    assert levels.values == [[0.2, 0.4], [1, 4]]
    assert levels.label(levels.reference) == "tau 0.4, beta 1"


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    gathered = swept(
        tmp_path,
        (1, {"tau": 0.4}, WORSE),
        (1, {"tau": 0.2, "beta": 1.0}, BETTER),
        (2, {"tau": 0.2, "beta": 4.0}, BETTER),
        (1, {"tau": 0.4}, BETTER),
    )
    with pytest.raises(ConfigError, match=r"settings that vary among these runs \(gating.tau, gating.beta\)"):
        compare_levels(gathered, ["probe.name"], None)
    with pytest.raises(ConfigError, match=r"at a level with a finished run \(2; 1; 4\), but is 3"):
        compare_levels(gather([tmp_path / "0", tmp_path / "1", tmp_path / "2"]), ["gating.beta"], [3])
    with pytest.raises(DataError, match=r"runs at gating.tau=0.2 differ in gating.beta too"):
        compare_levels(gather([tmp_path / "1", tmp_path / "2", tmp_path / "3"]), ["gating.tau"], None)
    with pytest.raises(DataError, match=r"/0 and .*/3 are the same run \(gating.tau=0.4, gating.beta=2, same seed\)"):
        compare_levels(gathered, ["gating.tau", "gating.beta"], None)
