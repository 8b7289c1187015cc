"""Steps to a threshold: read off curves, put between reference and ceiling, and shown, by hand."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from experiments.study.ceilings import (
    coverage,
    fastest,
    kind_of,
    one_row_an_arm,
    regimes,
    run_costs,
    shown,
    standing_panels,
    summarised,
)
from experiments.study.reward_curves import lower_thresholds, reward_curves, threshold_tables
from oar.common.errors import DataError
from tests.experiments.made_curves import KINDS, costs_of, made, runs_of


def test_what_a_run_needed(tmp_path: Path) -> None:
    found = run_costs(made(tmp_path, "grpo", 1, {0: 0.3, 10: 0.5, 20: 0.9}))
    assert (found["steps"], found["tokens"], found["seconds"], found["reached"]) == (20, 1600, 10.0, True)
    never = run_costs(made(tmp_path, "oar_p", 1, {0: 0.3, 10: 0.5, 40: 0.89}))
    assert (never["steps"], never["tokens"], never["reached"]) == (40, 3200, False)
    again = run_costs(made(tmp_path, "oar_g", 1, {0: 0.3, 10: 0.92, 20: 0.5, 30: 0.95}))
    assert again["steps"] == 10  # the first time
    continued = run_costs(made(tmp_path, "spo", 1, {0: 0.3, 20: 0.9}, **{"train/continuation_tokens": 7.0}))
    assert continued["tokens"] == 20 * (8 * 10 + 7)


def test_a_run_without_a_threshold_is_refused(tmp_path: Path) -> None:
    run = made(tmp_path, "grpo", 1, {0: 0.3, 10: 0.5})
    run.settings.evaluation.stop_at = None
    with pytest.raises(DataError, match=r"evaluation\.stop_at is null"):
        run_costs(run)


def test_where_arms_stand(tmp_path: Path) -> None:
    costs = pd.DataFrame([run_costs(run) for run in runs_of(tmp_path)])
    rows = summarised(costs, KINDS, "grpo").set_index(["arm", "rate"])
    assert rows["best"].to_dict() == {
        ("grpo", 1e-3): True,
        ("oracle_causal", 1e-3): True,
        ("oar_p", 1e-3): True,
        ("oar_p", 3e-4): False,
        ("oar_p_shuffled", 1e-3): True,
    }
    standing = rows[rows["best"]]["standing"].droplevel("rate")
    assert standing["grpo"] == 0
    assert standing["oracle_causal"] == 1
    assert standing["oar_p"] == pytest.approx(0.5)
    assert math.isnan(standing["oar_p_shuffled"])
    assert math.isnan(rows.loc[("oar_p", 3e-4), "standing"])
    control = rows.loc[("oar_p_shuffled", 1e-3)]
    assert (control["steps"], control["reached"], control["seeds"]) == (np.inf, 1, 3)
    assert shown(control, "steps") == "not by 40 steps"
    assert shown(rows.loc[("grpo", 1e-3)], "tokens") == "2,400 [2,400, 2,400]"
    found = regimes(costs, KINDS, "grpo")["one"]
    assert found == {
        "grpo": {"arm": "grpo", "steps": 30.0},
        "ceiling": {"arm": "oracle_causal", "steps": 10.0},
        "practical": {"arm": "oar_p", "steps": 20.0},
    }


def test_a_range_goes_on_to_a_run_that_does_not_get_there() -> None:
    runs = {"grpo": [50, 50, 50], "oracle_causal": [10, 10, 10], "oar_p": [20, 30, None]}
    rows = [
        ("one", arm, 1e-3, seed, steps is not None, steps or 70, 0, 0.0)
        for arm, of in runs.items()
        for seed, steps in enumerate(of)
    ]
    stands = summarised(costs_of(rows), KINDS, "grpo").set_index("arm").loc["oar_p"]
    assert [stands[f"standing{end}"] for end in ("_low", "", "_high")] == [-0.5, 0.5, 0.75]


def test_nothing_stands_below_a_ceiling_that_is_no_sooner_than_the_reference() -> None:
    """A gap below 0 would put the latest arm highest."""
    rows = [
        ("one", arm, 1e-3, 1, True, steps, 0, 0.0)
        for arm, steps in {"grpo": 40, "oracle_causal": 50, "oar_p": 90}.items()
    ]
    stands = summarised(costs_of(rows), KINDS, "grpo")
    assert stands["standing"].isna().all()
    assert standing_panels(stands) == {}


def test_an_arm_is_held_against_the_seeds_that_it_was_run_under() -> None:
    """Under seed 1 GRPO needs 80 steps and under the two others more than 300; oar_p was run under seed 1, and under one more."""
    runs = {"grpo": {1: 80, 2: None, 3: None}, "oracle_causal": {1: 50, 2: 40, 3: 60}, "oar_p": {1: 60, 4: 20}}
    rows = [
        ("one", arm, 1e-3, seed, steps is not None, steps or 300, 0, 0.0)
        for arm, of in runs.items()
        for seed, steps in of.items()
    ]
    table = summarised(costs_of(rows), KINDS, "grpo").set_index("arm")
    assert table.loc["oar_p", "standing"] == pytest.approx((80 - 60) / (80 - 50))
    assert table.loc["oar_p", "standing_low"] == table.loc["oar_p", "standing_high"] == table.loc["oar_p", "standing"]
    assert table.loc["oar_p", "steps"] == 40
    oracle = [table.loc["oracle_causal", f"standing{end}"] for end in ("_low", "", "_high")]
    assert oracle == [(300 - steps) / (300 - 50) for steps in (60, 50, 40)]
    alone = summarised(costs_of([row for row in rows if row[3] == 4 or row[1] != "oar_p"]), KINDS, "grpo")
    assert math.isnan(alone.set_index("arm").loc["oar_p", "standing"])
    assert set(standing_panels(alone)["one"]["arm"]) == {"grpo", "oracle_causal"}


def test_a_line_is_of_the_seeds_that_its_arms_share() -> None:
    """As where a method was run under the lucky seeds alone: it must not look sooner than its ceiling."""
    steps = {"grpo": [90, 80, 30, 40], "oracle_causal": [70, 60, 10, 10], "oar_p": [None, None, 20, 30]}
    rows = [
        ("one", arm, 1e-3, seed, True, of, 0, 0.0)
        for arm, by_seed in steps.items()
        for seed, of in enumerate(by_seed)
        if of is not None
    ]
    found = fastest(costs_of(rows), KINDS, "grpo")["one"]
    assert {name: (row["arm"], row["steps"], row["seeds"]) for name, row in found.items() if row is not None} == {
        "grpo": ("grpo", 35, 2),
        "practical": ("oar_p", 25, 2),
        "ceiling": ("oracle_causal", 10, 2),
    }
    apart = [row for row in rows if row[1] != "grpo" or row[3] == 0]
    found = fastest(costs_of(apart), KINDS, "grpo")["one"]
    assert {name: row["steps"] for name, row in found.items() if row is not None} == {
        "grpo": 90,
        "practical": 25,
        "ceiling": 35,
    }


def test_two_lucky_seeds_do_not_stand_before_three() -> None:
    rows = [
        ("one", arm, 1e-3, seed, True, of, 0, 0.0)
        for arm, by_seed in {
            "grpo": [90, 80, 70],
            "oar_p": [40, 50, 60],
            "oar_g": [20, 20],
            "oracle_causal": [10],
        }.items()
        for seed, of in enumerate(by_seed)
    ]
    kinds = KINDS | {"oar_g": KINDS["oar_p"]}
    found = fastest(costs_of(rows), kinds, "grpo")["one"]
    assert {name: row["arm"] for name, row in found.items() if row is not None} == {
        "grpo": "grpo",
        "practical": "oar_p",
        "ceiling": "oracle_causal",
    }
    drawn = standing_panels(summarised(costs_of(rows), kinds, "grpo"))["one"]["arm"]
    assert set(drawn) == {"grpo", "oar_p"}  # the tables have the others
    found = fastest(costs_of([row for row in rows if row[3] < 2]), kinds, "grpo")["one"]
    assert found["practical"] is not None
    assert found["practical"]["arm"] == "oar_g"


def test_of_two_methods_alike_the_one_with_the_better_worst_seed_is_named() -> None:
    steps = {"grpo": [90, 80, 70], "oar_p": [40, 50, 300], "oar_g": [60, 50, 40], "oracle_causal": [30, 30, 30]}
    rows = [
        ("one", arm, 1e-3, seed, True, of, 0, 0.0) for arm, by_seed in steps.items() for seed, of in enumerate(by_seed)
    ]
    found = fastest(costs_of(rows), KINDS | {"oar_g": "method"}, "grpo")["one"]["practical"]
    assert found is not None
    assert found["arm"] == "oar_g"


def test_of_two_methods_alike_the_one_of_more_seeds_is_named() -> None:
    """Of more seeds the latest is bound to be later."""
    steps = {
        "grpo": [90] * 7,
        "oar_p": [50, 40, 60, 50, 50, 50, 90],
        "oar_g": [50, 40, 60, 50, 50],
        "oracle_causal": [30] * 7,
    }
    rows = [
        ("one", arm, 1e-3, seed, True, of, 0, 0.0) for arm, by_seed in steps.items() for seed, of in enumerate(by_seed)
    ]
    found = fastest(costs_of(rows), KINDS | {"oar_g": "method"}, "grpo")["one"]["practical"]
    assert found is not None
    assert found["arm"] == "oar_p"


def test_a_method_that_fails_under_a_seed_stands_behind_one_that_does_not() -> None:
    """As in `all`, where the lowest median is of a method that unlearns under some seeds."""
    steps = {
        "grpo": [90, 80, 70],
        "oar_p": [50, 50, 60],
        "oar_g": [20, 20, None],
        "oracle_causal": [30, 30, 30],
        "oracle_signed": [10, 10, None],
    }
    rows = [
        ("one", arm, 1e-3, seed, of is not None, of or 100, 0, 0.0)
        for arm, by_seed in steps.items()
        for seed, of in enumerate(by_seed)
    ]
    kinds = KINDS | {"oar_g": "method", "oracle_signed": "oracle"}
    for runs, best in ((rows, "oar_p"), ([row for row in rows if row[1] != "oar_p"], "oar_g")):
        found = fastest(costs_of(runs), kinds, "grpo")["one"]
        assert {name: row["arm"] for name, row in found.items() if row is not None} == {
            "grpo": "grpo",
            "practical": best,
            "ceiling": "oracle_signed",  # what could be had, if only under some seeds
        }


def test_a_seed_that_lacks_the_best_rate_of_an_arm_counts_at_the_other_one() -> None:
    """oar_p's best rate was run under seeds 5 to 9, GRPO's and the ceiling's under ten: all three are compared under ten."""
    of = {  # by arm and rate steps, by seed; None: not reached in 100
        ("grpo", 3e-4): [60] * 10,
        ("oracle_causal", 3e-4): [20] * 10,
        ("oar_p", 3e-4): [None] * 5 + [50] * 5,
        ("oar_p", 1e-3): [0] * 5 + [40] * 5,
    }
    rows = [
        ("one", arm, rate, seed, steps is not None, steps or 100, 0, 0.0)
        for (arm, rate), by_seed in of.items()
        for seed, steps in enumerate(by_seed)
        if steps != 0  # not run
    ]
    costs = costs_of(rows)
    found = fastest(costs, KINDS, "grpo")["one"]["practical"]
    assert found is not None
    assert (found["seeds"], found["reached"], found["steps_low"]) == (10, 5, 40)
    drawn = standing_panels(summarised(one_row_an_arm(costs), KINDS, "grpo"))["one"].set_index("arm")
    assert drawn["value"].to_dict() == {
        "grpo": 0,
        "oracle_causal": 1,
        "oar_p": pytest.approx(np.nan, nan_ok=True),
    }  # a cross


def test_steps_to_lower_thresholds_by_hand(tmp_path: Path) -> None:
    """Of an arm's best rate alone; the threshold itself is the last column, and gives the steps of the runs."""
    curves = {
        ("grpo", 1): {0: 0.3, 10: 0.6, 20: 0.85, 30: 0.9},
        ("grpo", 2): {0: 0.3, 10: 0.7, 20: 0.6, 40: 0.8},
        ("oar_p", 1): {0: 0.65, 10: 0.95},
    }
    runs = [made(tmp_path, arm, seed, curve) for (arm, seed), curve in curves.items()]
    slow = made(tmp_path, "oar_p", 1, {0: 0.3, 40: 0.9}, rate=1e-4)
    runs = [replace(run, condition="one") for run in (*runs, slow)]
    costs = pd.DataFrame([run_costs(run) for run in runs])
    table = threshold_tables(lower_thresholds(reward_curves(runs), costs))["one"]
    assert table.T.to_dict() == {
        ("grpo", 2): {0.6: "10 [10, 10]", 0.7: "15 [10, 20]", 0.8: "30 [20, 40]", 0.9: "not reached"},
        ("oar_p", 1): {0.6: "0 [0, 0]", 0.7: "10 [10, 10]", 0.8: "10 [10, 10]", 0.9: "10 [10, 10]"},
    }


def test_the_range_of_seeds_holds_the_median_as_often_as_said() -> None:
    draws = np.random.default_rng(0).normal(size=(20_000, 3))
    held = ((draws.min(axis=1) < 0) & (draws.max(axis=1) > 0)).mean()
    assert coverage(3) == pytest.approx(held, abs=0.01)


def test_a_method_under_a_control_is_a_control() -> None:
    assert kind_of("oar_p_shuffled", ["method=oar_p", "method.control=shuffled"]) == "control"
    assert kind_of("oracle_signed", ["method=oracle_signed"]) == "oracle"
    assert kind_of("oar_s", ["method=oar_s"]) == "method"
