"""Every verdict and every quantity by hand, and what is refused."""

import re
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from omegaconf import OmegaConf

from oar.analysis.arms import accuracy_of
from oar.analysis.claims.claims import (
    NOT_REPRODUCED,
    NOT_RUN,
    REPRODUCED,
    TOO_FEW,
    WITHIN,
    Claim,
    verdict,
)
from oar.analysis.claims.ledger import ledger
from oar.analysis.claims.page import claims_section
from oar.common.errors import ConfigError, DataError
from oar.runs.collapse import collapse_step
from oar.runs.folder import Run, full_steps, read_run
from tests.experiments.made_runs import Scores, make_run

ROOT = Path(__file__).parents[2]
PAPER = {"profile": "paper", "model": "qwen2_5_7b"}
FULL = {"embedded": 3, "paper": 3}  # the steps of a made run
ARMS: dict[str, dict[str, Any]] = {name: {"method.name": name} for name in ("grpo", "oar_g", "oar_p")}


def claim(quantity: str, *arms: str, target: tuple[float, float] = (0.0, inf), **more: Any) -> Claim:
    named = {name: ARMS[name] for name in arms}
    parts: dict[str, Any] = {"tolerance": 0.0, "needs": {}, "sets": {}, "source": "toy"}
    return Claim("toy", "a claim", quantity, named, target, **parts | more)


def judged(claim: Claim, *folders: Path, metric: str | None = None) -> "pd.Series[Any]":
    table = ledger([claim], [read_run(folder) for folder in folders], FULL)
    return (table if metric is None else table[table["metric"] == metric]).iloc[0]


def pair(folder: Path, other: Scores, one: Scores, seeds: int = 1, **more: Any) -> list[Path]:
    """GRPO and OAR-P, the same scores under every seed."""
    made = (("grpo", other), ("oar_p", one))
    return [make_run(folder, method, seed, scores, **more) for seed in range(seeds) for method, scores in made]


@pytest.mark.parametrize(
    ("low", "high", "target", "tolerance", "expected"),
    [
        (0.1, 2.0, (0, inf), 0, REPRODUCED),
        (0.0, 2.0, (0, inf), 0, WITHIN),  # "above 0" is strict
        (1e-13, 2.0, (0, inf), 0, WITHIN),  # what a sum leaves behind is no difference
        (-1.0, 2.0, (0, inf), 0, WITHIN),
        (-2.0, 0.0, (0, inf), 0, WITHIN),
        (-2.0, -0.1, (0, inf), 0, NOT_REPRODUCED),
        (89.6, 91.4, (90.5, 90.5), 1, REPRODUCED),
        (90.6, 91.4, (90.5, 90.5), 1, REPRODUCED),  # beside the number, by less than the tolerance
        (89.4, 91.4, (90.5, 90.5), 1, WITHIN),
        (90.6, 91.6, (90.5, 90.5), 1, NOT_REPRODUCED),
        (80.0, 90.4, (90.5, 90.5), 1, NOT_REPRODUCED),
        (81.0, 89.0, (80, 90), 0, REPRODUCED),
        (78.0, 94.0, (80, 90), 5, REPRODUCED),
        (60.0, 81.0, (80, 90), 5, WITHIN),
        (60.0, 79.0, (80, 90), 5, NOT_REPRODUCED),
    ],
)
def test_the_rule(low: float, high: float, target: tuple[float, float], tolerance: float, expected: str) -> None:
    assert verdict(low, high, target, tolerance) == expected


def test_a_difference_by_hand(tmp_path: Path) -> None:
    """Two sets of different size count alike: (50 + 25) / 2 on every draw, for each problem gains as much as its set."""
    folders = pair(tmp_path, {"a": [0.25] * 4, "b": [0.5] * 2}, {"a": [0.75] * 4, "b": [0.75] * 2}, seeds=3)
    row = judged(claim("difference", "oar_p", "grpo"), *folders, metric="avg@k")
    assert (row["verdict"], row["value"], row["low"], row["high"]) == (REPRODUCED, 37.5, 37.5, 37.5)
    assert (row["problems"], row["k"], row["seeds"], row["unit"]) == (6, "4", "0, 1, 2", "points")
    assert (row["interval_over"], row["benchmarks"]) == ("problems and seeds", "a, b")
    greedy = judged(claim("difference", "oar_p", "grpo"), *folders, metric="pass@1")
    assert (greedy["verdict"], greedy["value"], greedy["k"]) == (WITHIN, 0.0, "1")
    other = judged(claim("difference", "grpo", "oar_p"), *folders, metric="avg@k")
    assert (other["verdict"], other["value"]) == (NOT_REPRODUCED, -37.5)


def test_a_record_stands_beside_the_number(tmp_path: Path) -> None:
    row = judged(claim("difference", "oar_p", "grpo"), *pair(tmp_path, {"a": [0.0]}, {"a": [1.0]}), metric="avg@k")
    assert row["identities"] == '{"oar_p": ["oar_p0"], "grpo": ["grpo0"]}'
    assert (row["profile"], row["model"], row["measure"], row["steps"]) == ("embedded", "embedded", "m1", "3")
    assert (row["template"], row["versions"], row["git_commit"]) == ("qwen_math d16e57", "torch 2.0", "c0ffee")
    assert (row["data"], row["device"]) == ('{"a": {"file": "a.jsonl", "sha256": "5a"}}', "toy CPU, 2 cores")
    assert row["interval_over"] == "problems, one seed"


def test_both_intervals_must_agree(tmp_path: Path) -> None:
    """Gains of 1, 2 and 9 points by seed, the same on every problem: the bootstrap lies above 0, Student's does not."""
    folders = []
    for seed, gain in enumerate((0.01, 0.02, 0.09)):
        folders.append(make_run(tmp_path, "grpo", seed, {"a": [0.5] * 20}, k=100))
        folders.append(make_run(tmp_path, "oar_p", seed, {"a": [0.5 + gain] * 20}, k=100))
    row = judged(claim("difference", "oar_p", "grpo"), *folders, metric="avg@k")
    found = accuracy_of("avg@k", [[read_run(one) for one in folders[at::2]] for at in (1, 0)])
    # n - 1 = 2 of three seeds drawn: from the worst twice to the best twice
    assert found.difference().bootstrap == (1.0, 9.0)
    reach = 4.3027 * np.std([1, 2, 9], ddof=1) / 3**0.5
    assert (row["value"], row["low"], row["high"]) == pytest.approx((4, 4 - reach, 4 + reach), abs=1e-3)
    assert row["verdict"] == WITHIN
    assert judged(claim("difference", "grpo", "oar_p"), *folders, metric="avg@k")["verdict"] == WITHIN


def test_few_seeds_or_short_runs_are_no_ground_for_a_verdict(tmp_path: Path) -> None:
    folders = pair(tmp_path, {"a": [0.25] * 4}, {"a": [0.75] * 4}, seeds=3)
    above = claim("difference", "oar_p", "grpo")
    for seeds, full, expected, reason in (
        (3, {"embedded": 3}, REPRODUCED, ""),
        (2, {"embedded": 3}, TOO_FEW, "2 of 3 seeds"),
        (1, {"embedded": 100}, TOO_FEW, "1 of 3 seeds, 3 of 100 steps"),
        (3, {"embedded": 100}, TOO_FEW, "3 of 100 steps"),
        (3, {"embedded": 2}, REPRODUCED, ""),  # longer than the profile's
        (3, {"paper": 3}, TOO_FEW, "how many steps a run of profile embedded has is not known"),
    ):
        row = ledger([above], [read_run(folder) for folder in folders[: 2 * seeds]], full).iloc[0]
        assert (row["verdict"], row["reason"], row["value"]) == (expected, reason, 50.0)
    text = claims_section(ledger([above], [read_run(one) for one in folders[:2]], FULL), "embedded")
    assert "| **too few seeds to tell** (1 of 3 seeds) |" in text
    assert "| problems, one seed | 4 x 4 | 0 |" in text
    assert full_steps()["embedded"] == 100


def random_runs(folder: Path, seeds: int) -> tuple[list[Path], dict[str, dict[str, Any]]]:
    """Scores of two sets that depend on problem, seed and method; also as arrays (seeds, problems) by method and set."""
    rng = np.random.default_rng(3)
    sizes, folders = {"a": 40, "b": 15}, []
    hardness = {name: rng.uniform(size=n) for name, n in sizes.items()}
    arrays: dict[str, dict[str, Any]] = {}
    for method, skill in (("grpo", 0.0), ("oar_p", 0.12)):
        arrays[method] = {
            name: np.round(4 * np.clip(hardness[name] + skill + rng.normal(0, 0.2, (seeds, n)), 0, 1)) / 4
            for name, n in sizes.items()
        }
        for seed in range(seeds):
            scores = {name: array[seed].tolist() for name, array in arrays[method].items()}
            folders.append(make_run(folder, method, seed, scores))
    return folders, arrays


@pytest.mark.parametrize("seeds", [1, 3])
def test_the_interval_is_that_of_a_naive_bootstrap(tmp_path: Path, seeds: int) -> None:
    folders, arrays = random_runs(tmp_path, seeds)
    row = judged(claim("difference", "oar_p", "grpo"), *folders, metric="avg@k")
    rng, draws, unpaired = np.random.default_rng(0), [], []
    for _ in range(4000):
        drawn_seeds = [int(rng.integers(seeds)) for _ in range(max(1, seeds - 1))]
        means, means_unpaired = [], []
        for name in ("a", "b"):
            one, other = arrays["oar_p"][name], arrays["grpo"][name]
            problems, others = rng.integers(one.shape[1], size=(2, one.shape[1]))
            means.append(np.mean([(one[s][problems] - other[s][problems]).mean() for s in drawn_seeds]))
            means_unpaired.append(np.mean([(one[s][problems] - other[s][others]).mean() for s in drawn_seeds]))
        draws.append(100 * (means[0] + means[1]) / 2)
        unpaired.append(100 * (means_unpaired[0] + means_unpaired[1]) / 2)
    low, high = np.quantile(draws, [0.025, 0.975])
    gains = [(arrays["oar_p"][name] - arrays["grpo"][name]).mean() for name in ("a", "b")]
    assert row["value"] == pytest.approx(100 * np.mean(gains))
    arms = [[read_run(one) for one in folders if method in one.name] for method in ("oar_p", "grpo")]
    bootstrap = accuracy_of("avg@k", arms).difference().bootstrap
    assert bootstrap == pytest.approx((low, high), abs=0.07 * (high - low))
    assert row["low"] <= bootstrap[0] <= bootstrap[1] <= row["high"]
    assert high - low < 0.8 * np.subtract(*np.quantile(unpaired, [0.975, 0.025]))


def test_without_completions_seeds_alone_are_random(tmp_path: Path) -> None:
    """Differences 10, 20, 30 points: 20 with standard error 10 / sqrt(3), and t = 4.303 for two degrees of freedom."""
    runs = [
        read_run(make_run(tmp_path, method, seed, {"a": [0.2 + gain * (method == "oar_p")]}, keep_samples=False))
        for seed, gain in enumerate((0.1, 0.2, 0.3))
        for method in ("grpo", "oar_p")
    ]
    row = ledger([claim("difference", "oar_p", "grpo")], runs, FULL).iloc[0]
    reach = 4.3027 * 10 / 3**0.5
    assert (row["value"], row["low"], row["high"]) == pytest.approx((20, 20 - reach, 20 + reach), abs=1e-3)
    assert (row["interval_over"], row["verdict"]) == ("seeds", WITHIN)
    one_seed = ledger([claim("difference", "oar_p", "grpo")], runs[:2], FULL).iloc[0]
    assert (one_seed["verdict"], one_seed["reason"], one_seed["value"]) == (TOO_FEW, "1 of 3 seeds", 10.0)
    assert (one_seed["interval_over"], pd.isna(one_seed["low"])) == ("one seed, no interval", True)


def test_a_number_needs_its_model_and_the_whole_benchmark(tmp_path: Path) -> None:
    number = claim(
        "accuracy", "grpo", target=(62.5, 62.5), tolerance=1.0, sets={"a": 4},
        needs={"profile": "paper", "model.name": "qwen2_5_7b"},
    )  # fmt: skip
    scores = {"a": [0.75, 0.75, 0.5, 0.5], "b": [1.0]}
    elsewhere, there, part, other_model, none = (tmp_path / str(at) for at in range(5))
    row = judged(number, make_run(elsewhere, "grpo", 0, scores))
    command = "make reproduce-table1 PROFILE=paper ARGS='model=qwen2_5_7b model.path=FOLDER'"
    needs = f"needs runs with profile=paper model=qwen2_5_7b method=grpo: `{command}`"
    assert (row["verdict"], row["reason"]) == (NOT_RUN, needs)
    assert pd.isna(row["value"])
    row = judged(number, *(make_run(there, "grpo", seed, scores, **PAPER) for seed in range(3)), metric="avg@k")
    # Of set a alone; four problems leave more than a point open.
    assert (row["value"], row["verdict"]) == (62.5, WITHIN)
    assert row["low"] < 61.5
    row = judged(number, make_run(part, "grpo", 0, {"a": [0.75] * 3, "b": [1.0]}, **PAPER))
    assert (row["verdict"], row["reason"]) == (NOT_RUN, "needs all 4 problems of a, these runs have 3")
    row = judged(number, make_run(none, "grpo", 0, {"b": [0.75] * 4}, **PAPER))
    assert (row["verdict"], row["reason"]) == (NOT_RUN, "needs the benchmark a")
    row = judged(number, make_run(other_model, "grpo", 0, scores, profile="paper", model="qwen2_5_math_7b"))
    assert row["verdict"] == NOT_RUN


@pytest.mark.parametrize(
    ("kept", "value", "expected"), [(34, 85.0, REPRODUCED), (38, 95.0, NOT_REPRODUCED), (-8, -20.0, NOT_REPRODUCED)]
)
def test_the_share_of_a_gain_by_hand(tmp_path: Path, kept: int, value: float, expected: str) -> None:
    """Every problem gains alike: 40 points by OAR-P, `kept` by OAR-G."""
    for method, points in (("grpo", 0), ("oar_p", 40), ("oar_g", kept)):
        for seed in range(3):
            make_run(tmp_path, method, seed, {"a": [(30 + points) / 100] * 20}, k=50)
    row = judged(claim("share", "oar_g", "oar_p", "grpo", target=(80, 90)), *sorted(tmp_path.iterdir()), metric="avg@k")
    assert (row["value"], row["low"], row["high"], row["unit"]) == pytest.approx((value, value, value, "%"))
    assert row["verdict"] == expected


def test_a_share_over_seeds_is_that_of_their_mean_gains(tmp_path: Path) -> None:
    """OAR-G gains 10, 20 and 45 points of 30, 40 and 50: 75 of 120."""
    for method, gains in (("grpo", (0, 0, 0)), ("oar_p", (30, 40, 50)), ("oar_g", (10, 20, 45))):
        for seed, points in enumerate(gains):
            make_run(tmp_path, method, seed, {"a": [(30 + points) / 100] * 20}, k=20)
    row = judged(claim("share", "oar_g", "oar_p", "grpo", target=(80, 90)), *sorted(tmp_path.iterdir()), metric="avg@k")
    assert row["value"] == pytest.approx(62.5)


def test_where_nothing_is_gained_there_is_no_share(tmp_path: Path) -> None:
    for method, scores in (("grpo", [0.5, 0.5]), ("oar_p", [1.0, 0.25]), ("oar_g", [1.0, 1.0])):
        make_run(tmp_path, method, 0, {"a": scores})
    row = judged(claim("share", "oar_g", "oar_p", "grpo", target=(80, 90)), *sorted(tmp_path.iterdir()), metric="avg@k")
    assert row["verdict"] == NOT_RUN
    said = r"oar_p gains \+12.5 \[-2\d.\d, \+4\d.\d\] points over grpo, not clearly more than 0"
    assert re.match(said, row["reason"])


def test_a_share_needs_the_completions(tmp_path: Path) -> None:
    folders = [
        make_run(tmp_path, method, seed, {"a": [share]}, keep_samples=False)
        for seed in range(2)
        for method, share in (("grpo", 0.0), ("oar_p", 0.5), ("oar_g", 0.4))
    ]
    row = judged(claim("share", "oar_g", "oar_p", "grpo", target=(80, 90)), *folders)
    assert row["verdict"] == NOT_RUN
    assert "samples.parquet" in row["reason"]


def test_overhead_is_the_ratio_of_medians(tmp_path: Path) -> None:
    scores = {"a": [1.0]}
    about = claim("overhead", "oar_g", "grpo", target=(1.4, 1.4), tolerance=0.25)
    folders = [
        make_run(tmp_path, "grpo", 0, scores, seconds=[9.0, 2.0, 2.0, 2.0, 2.0]),
        make_run(tmp_path, "oar_g", 0, scores, seconds=[2.8] * 5),
    ]
    row = judged(about, *folders)
    assert (row["value"], row["unit"], row["interval_over"], row["metric"]) == (1.4, "x", "steps, one seed", "")
    # Three or more slow draws of five make a median of 9: a chance of 0.058, so the lower end, and only it, is theirs.
    assert (row["low"], row["high"]) == pytest.approx((2.8 / 9, 1.4))
    assert row["verdict"] == TOO_FEW
    for seed, slow in ((1, 1.0), (2, 1.1)):
        folders.append(make_run(tmp_path, "grpo", seed, scores, seconds=[2.0] * 5))
        folders.append(make_run(tmp_path, "oar_g", seed, scores, seconds=[2.8 * slow] * 5))
    row = judged(about, *folders)
    assert (row["interval_over"], row["verdict"]) == ("steps and seeds", WITHIN)
    assert row["value"] == pytest.approx(1.4 * 1.1 ** (1 / 3))
    # Over seeds the ratios are 1.4, 1.4 and 1.54: their logarithms lie log(1.1) / 3 around their mean, and t is 4.303.
    assert row["high"] == pytest.approx(1.4 * np.exp(np.log(1.1) / 3 * (1 + 4.3027)), abs=1e-3)


def test_overhead_is_of_one_machine_at_a_time(tmp_path: Path) -> None:
    """Two seeds on a slow machine and one on a fast one: pooled medians would be of two machines."""
    folders = []
    for seed, second in enumerate((20.0, 20.0, 1.0)):
        folders.append(make_run(tmp_path, "grpo", seed, {"a": [1.0]}, seconds=[second, second, second * 0.1]))
        folders.append(make_run(tmp_path, "oar_g", seed, {"a": [1.0]}, seconds=[second * 1.3] * 3))
    row = judged(claim("overhead", "oar_g", "grpo", target=(1.0, inf)), *folders)
    assert row["value"] == pytest.approx(1.3)
    assert (row["verdict"], row["seeds"]) == (REPRODUCED, "0, 1, 2")
    assert row["high"] < 15
    ran_elsewhere(folders[5])
    row = judged(claim("overhead", "oar_g", "grpo", target=(1.0, inf)), *folders)
    assert (row["verdict"], row["reason"], row["seeds"]) == (TOO_FEW, "2 of 3 seeds", "0, 1")
    for folder in folders[1:5:2]:
        ran_elsewhere(folder)
    row = judged(claim("overhead", "oar_g", "grpo", target=(1.0, inf)), *folders)
    assert (row["verdict"], row["reason"][:32]) == (NOT_RUN, "needs runs of one seed on one ma")


def ran_elsewhere(folder: Path) -> None:
    record = folder / "evaluation.json"
    record.write_text(record.read_text().replace("toy CPU", "another CPU"))


def test_a_control_is_not_the_method(tmp_path: Path) -> None:
    folders = pair(tmp_path, {"a": [0.5]}, {"a": [0.75]})
    control = make_run(tmp_path / "control", "oar_p", 0, {"a": [1.0]})
    config = OmegaConf.load(control / "config.yaml")
    OmegaConf.update(config, "method.control", "shuffled", force_add=True)
    OmegaConf.save(config, control / "config.yaml")
    row = judged(claim("difference", "oar_p", "grpo"), *folders, control, metric="avg@k")
    assert row["value"] == 25.0
    row = judged(claim("difference", "oar_p", "grpo"), folders[0], control)
    assert (row["verdict"], row["reason"][:10]) == (NOT_RUN, "needs runs")


def falling(step: int, steps: int = 40) -> list[float]:
    return [1.0 if at < step else 0.0 for at in range(1, steps + 1)]


def test_collapse_by_hand() -> None:
    """A drop to 0 at step 20: of the nine steps up to 27, one is still 1: a mean of 1/9 after 2/9, which is not below 0.2."""
    assert collapse_step(np.array(falling(20))) == 27
    assert collapse_step(np.array(falling(99))) is None
    assert collapse_step(np.array([0.3, *[1.0] * 20])) is None  # one low step is no collapse
    assert collapse_step(np.array([1.0, 0.0])) is None
    assert collapse_step(np.array([0.1] * 10 + [1.0] * 10 + [0.1] * 10)) is None  # back where it was
    assert collapse_step(np.full(30, 0.01)) is None  # little entropy from the start has not collapsed


def test_who_collapses_earlier(tmp_path: Path) -> None:
    for seed, (ours, theirs) in enumerate(((30, 20), (99, 21), (32, 20))):
        for method, drop in (("oar_p", ours), ("grpo", theirs)):
            make_run(tmp_path, method, seed, {"a": [1.0]}, entropy=falling(drop), reward=[0.5] * 40)
    row = judged(claim("collapse", "oar_p", "grpo"), *sorted(tmp_path.iterdir()))
    later = [37 - 27, 41 - 28, 39 - 27]  # one never collapses: the step after the last
    assert row["value"] == pytest.approx(np.mean(later))
    assert (row["verdict"], row["unit"], row["interval_over"]) == (REPRODUCED, "steps", "seeds")
    assert row["low"] == pytest.approx(np.mean(later) - 4.3027 * np.std(later, ddof=1) / 3**0.5, abs=1e-3)
    single = judged(claim("collapse", "oar_p", "grpo"), tmp_path / "oar_p-seed0", tmp_path / "grpo-seed0")
    assert (single["verdict"], single["reason"]) == (TOO_FEW, "1 of 3 seeds")


def test_where_nothing_collapses_nobody_is_earlier(tmp_path: Path) -> None:
    row = judged(claim("collapse", "oar_p", "grpo"), *pair(tmp_path, {"a": [1.0]}, {"a": [1.0]}, seeds=2))
    reason = "no entropy falls below 0.2 of its start in these 3 steps: none collapses"
    assert (row["verdict"], row["reason"]) == (NOT_RUN, reason)


def test_slower_learning_has_less_reward(tmp_path: Path) -> None:
    for seed, bonus in enumerate((0.0, 0.02, 0.01)):
        make_run(tmp_path, "oar_p", seed, {"a": [1.0]}, reward=[0.5, 0.7, 0.9 + bonus])
        make_run(tmp_path, "grpo", seed, {"a": [1.0]}, reward=[0.4, 0.5, 0.6])
    row = judged(claim("reward", "oar_p", "grpo"), *sorted(tmp_path.iterdir()))
    assert row["value"] == pytest.approx(0.2 + 0.01 / 3)
    assert row["verdict"] == REPRODUCED


def test_methods_of_other_seeds_are_no_pair(tmp_path: Path) -> None:
    folders = [make_run(tmp_path, method, seed, {"a": [1.0]}) for method, seed in (("grpo", 0), ("oar_p", 1))]
    assert judged(claim("difference", "oar_p", "grpo"), *folders)["reason"] == "oar_p and grpo have no seed in common"
    folders.append(make_run(tmp_path, "grpo", 1, {"a": [0.0]}))
    row = judged(claim("difference", "oar_p", "grpo"), *folders)
    assert (row["value"], row["seeds"]) == (100.0, "1")


def test_runs_that_were_measured_otherwise_are_refused(tmp_path: Path) -> None:
    first = read_run(make_run(tmp_path, "grpo", 0, {"a": [1.0, 0.0]}))
    others: list[tuple[Run, str]] = [
        (read_run(make_run(tmp_path / "x", "oar_p", 0, {"a": [1.0, 0.0]}, measure="m2")), "with different settings"),
        (
            read_run(make_run(tmp_path / "y", "oar_p", 0, {"a": [1.0, 0.0, 0.0]})),
            "only one of them has problem 'p00002'",
        ),
    ]
    for other, said in others:
        with pytest.raises(DataError, match=said):
            ledger([claim("difference", "oar_p", "grpo")], [first, other], FULL)
    with pytest.raises(ConfigError, match=r"must be on one of accuracy, .*, but is on 'speed'"):
        ledger([claim("speed", "grpo")], [first], FULL)
    with pytest.raises(ConfigError, match="must have 2 different arms, but has grpo"):
        ledger([claim("overhead", "grpo", "grpo")], [first], FULL)
    with pytest.raises(DataError, match=r"config\.yaml is missing"):
        read_run(tmp_path)
    record = first.folder / "evaluation.json"
    record.write_text(record.read_text().replace('"measure"', '"other"'))
    with pytest.raises(DataError, match="does not say measure"):
        read_run(first.folder)
