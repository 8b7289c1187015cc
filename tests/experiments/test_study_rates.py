"""A study of accuracy at several learning rates: what is compared at each, and with every arm at its best."""

import json

import pandas as pd
import pytest

from experiments.study.page import judge_study, write_results
from experiments.study.rates import with_best_rates
from tests.experiments.made_runs import toy_study
from tests.experiments.test_studies import SMALL, finished, study

QUARTER, HALF, MOST, ALL = [1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0], [1.0] * 4
# Percent by rate and arm, of seeds 1 and 2: GRPO's best is 0.0002, OAR-G's 0.0001 (a lucky seed alone does not count).
SCORES = {
    ("toy-lr0.0001", "grpo"): [QUARTER, HALF],
    ("toy-lr0.0001", "oar_g"): [ALL, MOST],
    ("toy-lr0.0002", "grpo"): [HALF, MOST],
    ("toy-lr0.0002", "oar_g"): [ALL],
}


def runs_at_rates(folder):
    return [
        finished(folder / condition, arm, seed, {"a": scores}, condition)
        for (condition, arm), by_seed in SCORES.items()
        for seed, scores in enumerate(by_seed, start=1)
    ]


def about():
    rates = {"rates": [0.0001, 0.0002], "conditions": {"toy-lr0.0001": [], "toy-lr0.0002": []}}
    return toy_study() | rates | {"pairs": [["oar_g", "grpo"]]}


def test_every_rate_is_a_condition_of_an_accuracy_study_and_keeps_its_seeds_and_arms() -> None:
    rates = ("rates=[1e-4,2e-4]", "seeds=2", "mistakes=false", "+seeds_of.default=1", "+arms_of.default=[grpo,oar_g]")
    cfg, jobs = study("controls", *SMALL, *rates)
    assert [*cfg.conditions] == [*cfg.seeds_of] == ["default-lr0.0001", "default-lr0.0002"]
    found = [(job.condition, job.arm, job.settings.seed, job.settings.learner.lr) for job in jobs]
    assert found == [(f"default-lr{rate:g}", arm, 1, rate) for rate in (1e-4, 2e-4) for arm in ("grpo", "oar_g")]


def test_at_the_best_rates_each_arm_is_compared_at_its_own(tmp_path) -> None:
    runs, told = with_best_rates(runs_at_rates(tmp_path), about())
    best = [(run.arm, run.folder.parent.parent.name, run.seed) for run in runs if run.condition == "toy-best"]
    assert best == [
        *(("grpo", "toy-lr0.0002", seed) for seed in (1, 2)),
        *(("oar_g", "toy-lr0.0001", seed) for seed in (1, 2)),
    ]
    assert told["conditions"]["toy-best"] == ["each arm at its best rate (grpo 0.0002, oar_g 0.0001)"]
    page = write_results(about(), runs_at_rates(tmp_path / "again"), tmp_path / "toy", {"command": "toy"})
    found = pd.read_csv(tmp_path / "toy" / "differences.csv").set_index(["condition", "metric"])["difference"]
    # By seed 100 - 50 and 75 - 75; at one rate 100 - 25 and 75 - 50.
    assert found["toy-best", "avg@k"] == pytest.approx(25)
    assert found["toy-lr0.0001", "avg@k"] == pytest.approx(50)
    text = page.read_text()
    assert "![" in text
    assert "](rates.png)" in text
    judge_study(tmp_path / "toy", json.loads((tmp_path / "toy" / "provenance.json").read_text()))
    assert page.read_text() == text
