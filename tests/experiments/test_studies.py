"""Studies: differences, their correction and where weights sit by hand; every plan composes; a page from made-up runs."""

import json
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hydra import initialize_config_dir

from experiments.study.__main__ import StudyConfig, plan
from experiments.study.credit_dynamics import credit_table, weight_quantities
from experiments.study.page import draw_differences, judge_study, write_results
from experiments.study.studies import arm_differences, logged_means, pair_differences
from oar.analysis.arms import METRICS, holm
from oar.common.errors import ConfigError, DataError
from oar.config import validated
from oar.runs.folder import read_run
from tests.config.test_config import CONF, composed
from tests.experiments.made_runs import make_run, toy_study
from tests.programs import run as run_program

EASY, HARD = [1.0, 1.0, 0.5, 0.5], [0.5, 0.25, 0.0, 0.0]  # avg@4 of four problems
SMALL = ("~arms", "+arms={grpo: ['method=grpo'], oar_g: ['method=oar_g']}")
STUDIES = sorted(file.stem for file in (CONF / "experiment").glob("*.yaml") if "ran: >-" in file.read_text())


def finished(folder, arm, seed, scores, condition="default", **more):
    return read_run(make_run(folder / condition, arm, seed, scores, **more), arm=arm, condition=condition)


def three_seeds(folder, condition="default"):
    """OAR-G is 12.5 points ahead on one of two benchmarks under seed 1, 25 under seed 2, 0 under seed 3."""
    better = {1: [1.0, 1.0, 0.75, 0.75], 2: [1.0, 1.0, 1.0, 1.0], 3: EASY}
    runs = []
    for seed, scores in better.items():
        runs.append(finished(folder, "grpo", seed, {"a": EASY, "b": HARD}, condition))
        runs.append(finished(folder, "oar_g", seed, {"a": scores, "b": HARD}, condition))
    return runs


def test_differences_by_hand(tmp_path) -> None:
    """Means over two benchmarks: 6.25, 12.5 and 0 by seed; mean 6.25, standard deviation 6.25."""
    table = arm_differences(three_seeds(tmp_path), reference="grpo")
    row = table[table["metric"] == "avg@k"].iloc[0]
    assert (row["condition"], row["arm"], row["seeds"]) == ("default", "oar_g", 3)
    assert row["difference"] == pytest.approx(6.25)
    assert row["error"] == pytest.approx(6.25 / math.sqrt(3))
    assert row["low"] <= 6.25 <= row["high"]
    assert row["bootstrap_low"] >= 0  # no seed and no problem is worse
    reach = 4.3027 * 6.25 / math.sqrt(3)  # Student's is the wider one
    assert (row["low"], row["high"]) == pytest.approx((6.25 - reach, 6.25 + reach), abs=1e-3)
    # Of t = sqrt(3) with two degrees of freedom, 1 - t / sqrt(2 + t * t).
    assert row["p"] == pytest.approx(0.2254, abs=1e-4)
    assert row["p_bootstrap"] < row["p"]
    assert row["seeds_needed"] == 10  # one standard deviation, power 0.8: the tables' ten pairs
    greedy = table[table["metric"] == "pass@1"].iloc[0]
    assert greedy["difference"] == 0
    assert greedy["p"] == 1
    assert (table["p_holm"] == table["p"]).all()  # one comparison of each metric


def test_differences_are_taken_within_a_condition_and_between_shared_seeds(tmp_path) -> None:
    runs = three_seeds(tmp_path)
    runs += [finished(tmp_path, "grpo", seed, {"a": HARD, "b": HARD}, "hard") for seed in (1, 2)]
    runs += [finished(tmp_path, "oar_g", seed, {"a": EASY, "b": HARD}, "hard") for seed in (2, 3)]
    table = arm_differences(runs, reference="grpo").set_index(["condition", "metric"])
    assert table.loc[("hard", "avg@k"), "difference"] == pytest.approx((75 - 18.75) / 2)
    assert table.loc[("hard", "avg@k"), "seeds"] == 1
    assert np.isnan(table.loc[("hard", "avg@k"), "error"])
    assert pd.isna(table.loc[("hard", "avg@k"), "seeds_needed"])
    assert table.loc[("default", "avg@k"), "difference"] == pytest.approx(6.25)
    with pytest.raises(DataError, match="share a seed"):
        arm_differences([runs[0], finished(tmp_path, "oar_p", 9, {"a": EASY, "b": HARD})], reference="grpo")
    with pytest.raises(DataError, match="reference 'oar_p'"):
        arm_differences(runs, reference="oar_p")


def test_runs_of_other_problems_are_not_compared(tmp_path) -> None:
    runs = [finished(tmp_path, "grpo", 1, {"a": EASY}), finished(tmp_path, "oar_g", 1, {"a": EASY[:3]})]
    with pytest.raises(DataError, match="cannot be compared"):
        arm_differences(runs, reference="grpo")
    runs = [finished(tmp_path, "grpo", 2, {"a": EASY}), finished(tmp_path, "oar_g", 2, {"a": EASY}, keep_samples=False)]
    with pytest.raises(DataError, match=r"samples\.parquet"):
        arm_differences(runs, reference="grpo")


def test_runs_that_began_with_other_weights_are_not_compared(tmp_path) -> None:
    """Of one seed and of one model's settings; a seed may have weights of its own, and older runs do not say theirs."""
    began = {("grpo", 1): "a", ("oar_g", 1): "a", ("grpo", 2): "b", ("oar_g", 2): "b", ("grpo", 3): "c"}

    runs = three_seeds(tmp_path)

    def compared(weights):
        told = [{"start_weights": weights[key]} if (key := (run.arm, run.seed)) in weights else {} for run in runs]
        began = [replace(run, provenance={**run.provenance, **more}) for run, more in zip(runs, told, strict=True)]
        return len(arm_differences(began, reference="grpo"))

    assert compared(began) == 2
    with pytest.raises(DataError, match=r"seed2 and .*seed2 must begin with the same weights"):
        compared(began | {("oar_g", 2): "a"})
    for run in runs:
        run.settings.model.name = run.arm  # another model has other weights
    assert compared(began | {("oar_g", 2): "a"}) == 2


def test_pairs_are_differences_of_any_two_arms(tmp_path) -> None:
    """OAR-G minus another arm that is one benchmark's 25 points worse than GRPO under every seed."""
    runs = three_seeds(tmp_path)
    runs += [finished(tmp_path, "oar_p", seed, {"a": HARD, "b": HARD}) for seed in (1, 2, 3)]
    table = pair_differences(runs, [["oar_g", "oar_p"], ["oar_p", "grpo"]]).set_index(["metric", "arm"])
    assert table.loc[("avg@k", "oar_g"), "reference"] == "oar_p"
    assert table.loc[("avg@k", "oar_g"), "difference"] == pytest.approx(6.25 + 28.125)
    assert table.loc[("avg@k", "oar_p"), "difference"] == pytest.approx(-28.125)
    both = table.loc["avg@k"]
    assert both["p_holm"].to_numpy() == pytest.approx(holm(both["p"].to_numpy()))


def test_logged_metrics_are_means_over_steps_of_the_runs_that_have_them(tmp_path) -> None:
    runs = [finished(tmp_path, "grpo", 1, {"a": EASY}, entropy=(1.0, 0.5, 0.0))]
    found = logged_means(runs, ["train/entropy", "train/continuation_tokens"])
    assert found.to_dict("records") == [
        {"condition": "default", "arm": "grpo", "seed": 1, "name": "train/entropy", "value": 0.5}
    ]


def test_holm_by_hand() -> None:
    """Sorted 0.01, 0.03, 0.04 times 3, 2, 1: 0.03, 0.06, 0.04, of which none may fall below the one before."""
    assert holm(np.array([0.04, 0.01, 0.03])) == pytest.approx([0.06, 0.03, 0.06])
    assert holm(np.array([0.5, 0.9])) == pytest.approx([1.0, 1.0])


# --- where the weights sit --------------------------------------------------------------------------------------------


def test_quantities_of_uniform_weights() -> None:
    found = weight_quantities(np.ones(7), [0, 6])
    one = {
        "ess_ratio": 1,
        "weight_entropy": 1,
        "suppressed_share": 0,
        "top_fifth": 0.2,
        "centre": 0.5,
        "last_fifth": 0.2,
    }
    assert found == pytest.approx(one | {"causal_weight": 1} | {f"part_{part}": 1 for part in range(10)})


def test_quantities_by_hand() -> None:
    """Four tokens with weights 0, 0, 1, 3; a tenth of the reasoning is 0.4 tokens, a fifth 0.8."""
    found = weight_quantities(np.array([0.0, 0.0, 1.0, 3.0]), [1, 3])
    assert found["ess_ratio"] == pytest.approx(16 / (4 * 10))
    assert found["weight_entropy"] == pytest.approx(-(0.25 * math.log(0.25) + 0.75 * math.log(0.75)) / math.log(4))
    assert found["suppressed_share"] == 0.5
    assert found["top_fifth"] == pytest.approx(0.8 * 0.75)
    assert found["last_fifth"] == pytest.approx(0.8 * 0.75)
    assert found["centre"] == pytest.approx(0.25 * 2.5 / 4 + 0.75 * 3.5 / 4)
    assert found["causal_weight"] == 1.5
    assert [found[f"part_{part}"] for part in range(10)] == pytest.approx([0, 0, 0, 0, 0, 1, 1, 2, 3, 3])
    assert math.isnan(weight_quantities(np.array([1.0]), [])["weight_entropy"])


def keep_samples(run, *by_step):
    """by_step: of steps 10, 20, ... lists of (weights, advantage); the last token of each is causal, and an answer follows."""
    lines = []
    for number, samples in enumerate(by_step, start=1):
        for weights, advantage in samples:
            count = len(weights)
            segments = [count, count + 1, count + 2]
            row = {"step": 10 * number, "advantage": advantage, "segments": segments, "token_weights": [*weights, 1, 1]}
            lines.append(json.dumps(row | {"marks": {"causal": [count - 1, count + 5]}}))
    lines.append(json.dumps({"step": 10, "advantage": 1.0, "segments": None, "token_weights": [9.0], "marks": {}}))
    (run.folder / "samples.jsonl").write_text("\n".join(lines) + "\n")
    return run


def test_credit_is_read_from_the_kept_completions_that_have_some(tmp_path) -> None:
    grpo = keep_samples(finished(tmp_path, "grpo", 1, {"a": EASY}), [([1.0, 1.0], 0.5)])
    steps = ([([1.0, 1.0], 0.5), ([0.5, 1.5], -0.5), ([0.0, 2.0], 0.0)], [([0.0, 2.0], 1.0)])  # one has no advantage
    oar = keep_samples(finished(tmp_path, "oar_g", 1, {"a": EASY}), *steps)
    table = credit_table([grpo, oar])
    assert set(table["arm"]) == {"oar_g"}
    causal = table[table["quantity"] == "causal_weight"].set_index("step")["value"]
    assert causal.to_dict() == pytest.approx({10: 1.25, 20: 2.0})
    with pytest.raises(DataError, match="not uniform"):
        credit_table([grpo])
    with pytest.raises(DataError, match=r"samples\.jsonl"):
        credit_table([finished(tmp_path, "oar_p", 1, {"a": EASY})])


# --- the plan and the page --------------------------------------------------------------------------------------------


def study(name, *overrides):
    cfg = validated(composed(f"experiment={name}", *overrides, name="study"), StudyConfig)
    with initialize_config_dir(str(CONF), version_base=None):
        return cfg, plan(cfg)


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_composes_and_its_runs_are_all_different(name) -> None:
    cfg, runs = study(name, "seeds=1")
    assert cfg.name == name
    compared = [(condition, arm) for condition in cfg.conditions for arm in cfg.arms_of.get(condition, cfg.arms)]
    rates = len(cfg.rates) if cfg.ceilings else 1  # of accuracy: conditions
    assert [(run.condition, run.arm) for run in runs] == compared * max(1, rates)
    assert len({run.folder for run in runs}) == len(runs)
    for run in runs:
        mode = "disabled" if cfg.ceilings else "offline"  # many short runs in one process
        assert (run.settings.tracking.mode, run.settings.tracking.group) == (mode, name)
        if run.settings.method.estimator["_target_"].endswith("MarkedImportance"):
            assert run.settings.gating.threshold == "absolute"


def test_studies_share_their_runs_and_seeds_go_last() -> None:
    seven = (*SMALL, "overrides=['learner.steps=7']", "seeds=1")
    first, again = (study("controls", *seven, f"name={name}")[1] for name in ("one", "other"))
    assert [run.folder for run in first] == [run.folder for run in again]
    _, longer = study("controls", *SMALL, "overrides=['learner.steps=8', 'seed=5']", "seeds=2")
    assert not {run.folder for run in longer} & {run.folder for run in first}
    assert [run.settings.seed for run in longer] == [1, 1, 2, 2]  # what is interrupted has whole comparisons
    more = ("only=[all_one]", "rates=[3e-4]", "beside=[results/ceilings]", "first_seed=3", "seeds=4")
    _, added = study("ceilings", *more, "arms_of.all_one=[grpo,oracle_signed_unit]")
    assert [run.settings.seed for run in added] == [3, 3, 4, 4]
    _, fewer = study("carry_over", "only=[long, parts]", "seeds=2", "+seeds_of.long=1")
    assert Counter((run.condition, run.settings.seed) for run in fewer) == {
        ("long", 1): 5,
        ("parts", 1): 5,
        ("parts", 2): 5,
    }
    _, fewer = study("controls", *SMALL, "seeds=2", "+seeds_of.oar_g=1")
    assert [(run.arm, run.settings.seed) for run in fewer] == [("grpo", 1), ("oar_g", 1), ("grpo", 2)]


def test_a_study_that_cannot_work_is_refused() -> None:
    for override, said in (
        ("reference=best", "arms must hold the reference 'best'"),
        ("pairs=[[grpo, best]]", "pairs must hold two of the arms, but one is"),
        ("seeds=0", "seeds must be 1 or more"),
        ("rates=[1e-4,0.0001]", "rates must differ from one another, but are"),
        ("beside=[results/ceilings]", "beside must be empty where ceilings=false"),
        ("first_seed=4", "first_seed must be 3 at most, the least of seeds and seeds_of, but is 4"),
        ("+arms_of.default=[oar_g]", "arms_of.default must hold the reference 'grpo' and one more"),
        ("+arms_of.default=[grpo]", "arms_of.default must hold the reference 'grpo' and one more"),
        ("+seeds_of.default=4", r"seeds_of.default must be seeds \(3\) at most, but is 4"),
        (
            "+seeds_of.nothing=1",
            "arms_of, seeds_of, in_words and expected must name conditions and arms, but name nothing",
        ),
        ("+arms.twin=['method=grpo']", "twin and default: grpo are the same run"),
        ("+arms.other=['method=nobody']", "cannot be composed"),
        (
            "+arms.real=['benchmark=paper_suite']",
            "mistakes=true needs .* but default: real is evaluated on gsm8k, .* set mistakes=false",
        ),
    ):
        with pytest.raises(ConfigError, match=said):
            study("controls", *SMALL, override)


def test_a_study_whose_runs_are_there_starts_nothing_and_writes_its_page(tmp_path) -> None:
    chosen = ["seeds=2", "mistakes=false", *SMALL]
    chosen += [f"work_dir={tmp_path}/runs", f"output_dir={tmp_path}/page"]
    _, runs = study("controls", *chosen)
    for number, job in enumerate(runs):
        made = make_run(tmp_path / "made" / str(number), job.arm, job.settings.seed, {"words1": EASY})
        record = json.loads((made / "evaluation.json").read_text())
        record["provenance"] |= {"identity": job.settings.identity(), "measure": job.settings.measure(), "step": 50}
        record["provenance"] |= {"platform": "toy", "started": "2026-01-01", "finished": "2026-01-02"}
        (made / "evaluation.json").write_text(json.dumps(record))
        job.folder.parent.mkdir(exist_ok=True)
        made.rename(job.folder)
    code, output = run_program("study", "experiment=controls", *chosen)
    assert code == 0, output
    text = (tmp_path / "page" / "controls.md").read_text()
    assert "4 runs of 50 steps, 2 training seeds" in text
    assert "| default | `oar_g` | +0.0 ± 0.0 |" in text
    assert "python -m experiments.study experiment=controls seeds=2 mistakes=false" in text
    assert json.loads((tmp_path / "page" / "provenance.json").read_text())["learner_steps"] == 50
    code, output = run_program("study", "experiment=controls", *chosen, "first_seed=2")
    assert code == 0, output
    assert "2 runs of 50 steps, 1 training seed (2 to 2)" in (tmp_path / "page" / "controls.md").read_text()


def test_a_page_from_made_up_runs(tmp_path) -> None:
    runs = [keep_samples(one, [([0.5, 1.5], 1.0)], [([0.0, 2.0], 1.0)]) for one in three_seeds(tmp_path / "runs")]
    folder = tmp_path / "toy"
    made = {"command": "toy", "git_commit": "c0ffee"}
    page = write_results(toy_study(credit=True), runs, folder, made)
    page.write_text(page.read_text().replace("Nobody has read these numbers yet.", "It helps."))
    text = write_results(toy_study(credit=True), runs, folder, made).read_text()
    assert "It helps." in text
    assert "| default | `grpo` | 46.9 ± 0.0 |" in text  # (75 + 18.75) / 2
    assert "| default | `oar_g` | 53.1 ± 3.6 |" in text
    assert "| default | `oar_g` | +6.2 ± 3.6 | [" in text
    assert "| 3 | 10 |" in text
    assert "the 1 comparisons" in text
    assert "Does credit concentrate?" in text
    assert "| 1.500 ± 0.000 | 2.000 ± 0.000 | +0.500 ± 0.000 | 10, 20 |" in text
    pictures = ["forest.png", "curves-default.png", "credit.png", "profile.png"]
    assert all((folder / file).read_bytes().startswith(b"\x89PNG") and f"]({file})" in text for file in pictures)
    kept = {file.name for file in folder.iterdir()}
    assert kept == {
        *(*pictures, "toy.md", "scores.csv", "differences.csv", "credit.csv", "curves.parquet", "provenance.json")
    }


def test_a_study_may_leave_arms_out_under_a_condition(tmp_path) -> None:
    runs = [*three_seeds(tmp_path / "runs"), finished(tmp_path / "other", "grpo", 1, {"a": EASY, "b": HARD}, "hard")]
    about = toy_study() | {"pairs": [["grpo", "oar_g"]], "conditions": {"default": [], "hard": []}}
    page = write_results(about, runs, tmp_path / "toy", {"command": "toy"})
    assert "| default | `grpo` | `oar_g` | -6.2 ± 3.6 | [" in page.read_text()
    told = json.loads((tmp_path / "toy" / "provenance.json").read_text())["study"]["seconds"]
    assert {condition: [*arms] for condition, arms in told.items()} == {"default": ["grpo", "oar_g"], "hard": ["grpo"]}
    apart = ["+arms_of.parts=[grpo,oar_s_outcome]", "+arms_of.words=[grpo,oar_s_outcome_shuffled]"]
    cfg, _ = study("oar_s_outcome", "only=[parts,words]", *apart)
    assert cfg.pairs == []  # no condition runs both
    cfg, _ = study("oar_s_outcome", "only=[parts]", apart[0])
    assert [*cfg.arms] == ["grpo", "oar_s_outcome"]


def test_a_page_with_pairs_and_logged_metrics_is_judged_anew_from_its_folder(tmp_path) -> None:
    about = toy_study() | {"pairs": [["oar_g", "grpo"]], "logged": {"train/entropy": "entropy", "none": "nothing"}}
    page = write_results(about, three_seeds(tmp_path / "runs"), tmp_path / "toy", {"command": "toy"})
    text = page.read_text()
    assert "| default | `oar_g` | `grpo` | +6.2 ± 3.6 | [" in text
    assert "| default | `oar_g` | 1.000 ± 0.000 |  |" in text
    judge_study(tmp_path / "toy", json.loads((tmp_path / "toy" / "provenance.json").read_text()))
    assert page.read_text() == text
    assert {file.name for file in (tmp_path / "toy").iterdir()} >= {"pairs.csv", "pairs.png", "logged.csv"}


def test_an_arm_far_from_all_others_does_not_squeeze_them(monkeypatch, tmp_path):
    drawn = []
    monkeypatch.setattr("oar.analysis.reports.figures.save_png", lambda figure, _: drawn.append(figure))
    differences = {"a": -2.0, "b": 1.0, "c": -24.0}
    rows = [["default", metric, arm, at, at - 1.5, at + 1.5] for metric in METRICS for arm, at in differences.items()]
    table = pd.DataFrame(rows, columns=["condition", "metric", "arm", "difference", "bootstrap_low", "bootstrap_high"])
    # Student's alone reaches beyond what is drawn of b.
    table[["low", "high"]] = table[["bootstrap_low", "bootstrap_high"]]
    table.loc[table["arm"] == "b", ["low", "high"]] = [-80.0, 82.0]
    draw_differences(table, tmp_path / "forest.png", reference="grpo")
    for axes in drawn[0].axes:
        low, high = axes.get_xlim()
        assert -13 < low < -10  # three times the median reach of the bootstrap's ends
        assert 10 < high < 13
        ends = {(line.get_marker(), line.get_xdata()[0]) for line in axes.lines if line.get_marker() in "<>"}
        assert ends == {("<", -10.5), (">", 10.5)}
        assert [text.get_text() for text in axes.texts] == ["◂ -24.0"]
    table["difference"] *= -1
    draw_differences(table[table["arm"] != "b"], tmp_path / "forest.png", reference="grpo")
    assert [text.get_text() for text in drawn[1].axes[0].texts] == []  # of two, none is far from the others
    draw_differences(table, tmp_path / "forest.png", reference="grpo")
    assert [text.get_text() for text in drawn[2].axes[0].texts] == ["+24.0 ▸"]


def test_a_metric_that_no_run_logs_costs_no_page(tmp_path) -> None:
    runs = [finished(tmp_path / "runs", arm, 1, {"a": EASY}) for arm in ("grpo", "oar_g")]
    about = toy_study() | {"logged": {"train/nothing": "nothing"}}
    assert "While they trained" not in write_results(about, runs, tmp_path / "toy", {"command": "toy"}).read_text()


def test_a_page_counts_the_seeds_from_the_first_on(tmp_path) -> None:
    """Of seeds 2 to 3 an arm that has none above 2 has one."""
    runs = [finished(tmp_path / "runs", "grpo", seed, {"a": EASY}) for seed in (2, 3)]
    runs.append(finished(tmp_path / "runs", "oar_g", 2, {"a": EASY}))
    about = toy_study() | {"first_seed": 2, "seeds": 3, "seeds_of": {"oar_g": 2}}
    text = write_results(about, runs, tmp_path / "toy", {"command": "toy"}).read_text()
    assert "2 training seeds (2 to 3) for every arm under every condition, but 1 for `oar_g`" in text
