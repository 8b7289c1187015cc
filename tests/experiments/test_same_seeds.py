"""Arms under the same seeds, by hand: who is sooner under how many, and at which learning rate."""

import pandas as pd

from experiments.study.same_seeds import rates_tables, runs_at_rates, seed_by_seed
from oar.runs.folder import START_WEIGHTS
from tests.experiments.made_curves import KINDS


def test_seed_by_seed_an_arm_is_sooner_later_or_neither() -> None:
    steps = {
        "grpo": [(1, 30, True), (2, 30, True), (3, 40, False), (4, 10, True)],
        "oar_p": [(1, 20, True), (2, 30, True), (3, 40, False), (5, 20, True)],
        "oar_p_shuffled": [(1, 10, True), (2, 40, False), (3, 40, True), (5, 20, True)],
    }
    rows = [("one", arm, 1e-3, *run) for arm, runs in steps.items() for run in runs]
    worse = [("one", "oar_p", 1e-4, seed, 10, seed == 1) for seed in (1, 2, 3)]  # a rate that is not oar_p's best
    costs = pd.DataFrame([*rows, *worse], columns=["condition", "arm", "rate", "seed", "steps", "reached"])
    table = seed_by_seed(costs, KINDS, "grpo")["one"]
    assert table.to_dict() == {
        # oar_p: seed 2 alike, 3 neither, 4 and 5 run with one arm alone
        "grpo": {"oar_p": "1 : 0 of 3", "oar_p_shuffled": "2 : 1 of 3"},
        "oar_p_shuffled": {"oar_p": "1 : 2 of 4", "oar_p_shuffled": ""},
    }
    alone = costs[(costs["arm"] != "oar_p") | (costs["seed"] == 5)]
    assert seed_by_seed(alone, KINDS, "grpo")["one"]["grpo"].to_dict() == {
        "oar_p": "no seed in common",
        "oar_p_shuffled": "2 : 1 of 3",
    }


COLUMNS = ["condition", "arm", "rate", "seed", "steps", "reached", START_WEIGHTS]


def at_rates(
    arm: str, rate: float, steps: dict[int, int | None], condition: str = "one", weights: str | None = None
) -> list[tuple[object, ...]]:
    """Rows of an arm at a rate, by seed; None: not reached in 90 steps, and weights that are not known."""
    return [(condition, arm, rate, seed, of or 90, of is not None, weights) for seed, of in steps.items()]


def test_several_rates_are_compared_under_the_seeds_that_all_of_them_have() -> None:
    rows = [
        *at_rates("grpo", 1e-4, {1: 70, 2: None, 3: None, 4: 60}),
        *at_rates("grpo", 3e-4, {1: 40, 2: 50, 3: None, 5: 10, 6: 10}),  # seeds 5 and 6 have one rate alone
        *at_rates("grpo", 1e-3, {1: 10, 2: 10}),  # too few seeds for a rate
        *at_rates("oar_p", 1e-4, {1: 30, 2: 20, 3: 90}),
        *at_rates("oar_p", 3e-4, {1: 60, 2: 50, 3: 60, 5: 10, 6: 10}),
        *at_rates("oar_p_shuffled", 3e-4, {1: 80, 2: 80, 3: 80}),  # one rate
        *at_rates("oracle_unsigned", 3e-4, {1: 10, 2: 10}),  # seed 3 is missing
        *at_rates("oracle_causal", 1e-4, {1: 10, 2: 10}),  # seed 3 is missing
        *at_rates("oracle_causal", 3e-4, {1: 10, 2: 10, 3: 10}),
        *at_rates("grpo", 3e-4, {1: 40, 2: 50, 3: 60}, "share"),  # one rate
        # from another base model
        *at_rates("grpo", 1e-4, {7: 80, 8: 80, 9: 80}, weights="b"),
        *at_rates("grpo", 3e-4, {7: 60, 8: 70, 9: 80}, weights=None),  # it does not say, others of the seed do
        *at_rates("oar_p", 1e-4, {7: 80, 8: 80, 9: None}, weights="b"),
    ]
    costs = pd.DataFrame(rows, columns=COLUMNS)
    assert rates_tables(runs_at_rates(costs, "grpo"), "grpo") == {
        "one, seeds 1, 2, 3": {
            "rates": [1e-4, 3e-4],
            "arms": {
                "grpo": {
                    "steps": {1e-4: "not reached", 3e-4: "50 [40, not reached]"},
                    "best": 3e-4,
                    "sides": "",
                },
                # seed 1: 30 before 40; seed 2: 20 before 50; seed 3: 90, reached, before never
                "oar_p": {"steps": {1e-4: "30 [20, 90]", 3e-4: "60 [50, 60]"}, "best": 1e-4, "sides": "3 : 0 of 3"},
                "oar_p_shuffled": {"steps": {3e-4: "80 [80, 80]"}, "best": 3e-4, "sides": "1 : 2 of 3"},
                "oracle_causal": {"steps": {3e-4: "10 [10, 10]"}, "best": 3e-4, "sides": "3 : 0 of 3"},
            },
        },
        "one, seeds 7, 8, 9": {
            "rates": [1e-4, 3e-4],
            "arms": {
                "grpo": {"steps": {1e-4: "80 [80, 80]", 3e-4: "70 [60, 80]"}, "best": 3e-4, "sides": ""},
                "oar_p": {"steps": {1e-4: "80 [80, not reached]"}, "best": 1e-4, "sides": "0 : 3 of 3"},
            },
        },
    }
    alone = runs_at_rates(costs[costs["seed"].between(2, 6)], "grpo")  # two seeds in common
    assert rates_tables(alone, "grpo") == {}


def test_two_rates_of_many_seeds_leave_out_a_third_of_few() -> None:
    runs = {1e-4: range(1, 4), 3e-4: range(1, 7), 1e-3: range(1, 6)}
    rows = [row for rate, seeds in runs.items() for row in at_rates("grpo", rate, dict.fromkeys(seeds, 40))]
    costs = pd.DataFrame(rows, columns=COLUMNS)
    kept = runs_at_rates(costs, "grpo")
    assert kept.groupby("rate")["seed"].agg(list).to_dict() == {3e-4: [1, 2, 3, 4, 5], 1e-3: [1, 2, 3, 4, 5]}
    fewer = runs_at_rates(costs[(costs["rate"] < 1e-3) | (costs["seed"] < 5)], "grpo")  # one rate of five seeds
    assert fewer.groupby("rate")["seed"].agg(list).to_dict() == {rate: [1, 2, 3] for rate in runs}
