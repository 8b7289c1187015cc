"""The league: its lines by hand, the programs that measure a new one, and what is refused."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hydra import initialize_config_dir

from experiments.gradient_signal.__main__ import GradientSignalConfig
from experiments.gradient_signal.__main__ import planned as planned_gradients
from experiments.league.__main__ import TEMPLATE, LeagueConfig, programs, text
from experiments.league.table import COLUMNS, REGIMES, by_ways, league_table, read_tables
from experiments.signals.__main__ import SignalsConfig
from experiments.study.__main__ import StudyConfig
from experiments.study.__main__ import plan as planned_study
from oar.analysis.reports.page import rendered
from oar.common.errors import ConfigError, DataError
from oar.config import validated
from tests.config.test_config import CONF, composed
from tests.programs import run


def write_tables(folder: Path) -> dict[str, list[Path]]:
    """`mine` finds 0.8 of the causal tokens; in `one` it takes 30 steps of half a second, GRPO 60 of a quarter."""
    signals = [
        ("base", "all", "mine", "causal_auc", 0.8),
        ("base", "correct", "mine", "causal_auc", 0.1),
        ("trained", "all", "mine", "causal_auc", 0.2),
        ("base", "wrong", "mine", "error_top_fifth", 0.4),
        ("base", "all", "mine - position", "causal_auc", 0.3),
    ]
    pd.DataFrame(signals, columns=["model", "split", "signal", "metric", "value"]).to_csv(folder / "s.csv", index=False)
    gradients = [
        ("mine", "alignment_ratio", 4.0, 2.0, "one"),
        ("mine", "alignment_ratio", 16.0, 3.0, "one"),
        ("mine", "alignment", 4.0, 4.0, "one"),
        ("causal", "alignment_ratio", 4.0, 4.0, "one"),
        ("causal", "signal_share", np.nan, 0.9, "one"),
        ("best_by_class", "alignment_ratio", 4.0, 5.0, "one"),
    ]
    columns = ["arm", "metric", "batch", "value", "condition"]
    pd.DataFrame(gradients, columns=columns).to_csv(folder / "g.csv", index=False)
    costs = [
        *(("one", "grpo", 1e-3, seed, True, 60, 15.0) for seed in (1, 2)),
        *(("one", "mine", 1e-3, seed, True, steps, steps / 2) for seed, steps in ((1, 20), (2, 40))),
        *(("one", "mine", 1e-4, seed, True, 90, 45.0) for seed in (1, 2)),
        *(("share", "mine", 1e-3, seed, seed == 1, 50, 25.0) for seed in (1, 2)),
    ]
    columns = ["condition", "arm", "rate", "seed", "reached", "steps", "seconds"]
    pd.DataFrame(costs, columns=columns).to_csv(folder / "c.csv", index=False)
    return {
        "signals": [folder / "s.csv"],
        "gradients": [folder / "g.csv"],
        "costs": [folder / "c.csv"],
    }


def test_a_line_by_hand(tmp_path: Path) -> None:
    table = league_table([read_tables(write_tables(tmp_path))], model="base", batch=4)
    assert list(table.columns) == COLUMNS
    assert list(table["method"]) == ["grpo", "mine"]
    grpo, mine = table.set_index("method").to_dict("index").values()
    assert (mine["causal_auc"], mine["error_top_fifth"]) == (0.8, 0.4)
    assert (mine["aligned_one"], mine["steps_one"], mine["steps_share"]) == (2.0, 30, np.inf)
    assert (mine["seconds_ratio"], grpo["seconds_ratio"], grpo["steps_one"]) == (2, 1, 60)
    assert np.isnan([mine["spearman"], mine["aligned_all"], mine["steps_all"], grpo["causal_auc"]]).all()


def test_signals_that_were_looked_at_in_one_way_stand_apart() -> None:
    """Three columns of recall are one way; what a step costs is none."""
    measured = {
        "one": ["causal_auc", "error_top_fifth", "spearman", "seconds_ratio"],
        "two": ["spearman", "steps_all"],
        "aimed": ["aligned_one", "aligned_all"],
        "three": ["causal_auc", "aligned_share", "steps_one"],
    }
    rows = [{"method": name} | dict.fromkeys(columns, np.inf) for name, columns in measured.items()]
    several, alone = by_ways(pd.DataFrame(rows, columns=COLUMNS))
    assert (list(several["method"]), list(alone["method"])) == (["two", "three"], ["one", "aimed"])


def test_what_is_measured_here_takes_the_place_of_what_was_committed(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "here").mkdir()
    there, here = write_tables(tmp_path / "there"), write_tables(tmp_path / "here")
    slower = pd.read_csv(here["costs"][0]).assign(seconds=lambda rows: rows["seconds"] * 10)  # another machine
    slower.loc[slower["arm"] == "mine", "steps"] = 10
    slower.to_csv(here["costs"][0], index=False)
    parts = [read_tables(there, but="mine"), read_tables(here, only="mine")]
    table = league_table(parts, model="base", batch=4).set_index("method")
    assert table["steps_one"].to_dict() == {"grpo": 60, "mine": 10}
    paces = [10, 20]  # of its own runs in `one` at GRPO's rate, over GRPO's 2.5 seconds a step under the same seed
    assert table.loc["mine", "seconds_ratio"] == pytest.approx(np.median(paces) / 2.5)


def test_nothing_measured_is_an_empty_league() -> None:
    empty = read_tables({"signals": [], "gradients": [], "costs": []})
    assert league_table([empty], model="base", batch=4).empty


def test_of_two_files_the_last_one_counts_and_what_is_not_there_is_told(tmp_path: Path) -> None:
    files = write_tables(tmp_path)
    for name, was, now in (("signals", "0.8", "0.7"), ("gradients", ",4.0,2.0,", ",4.0,2.5,")):
        again = tmp_path / f"again-{name}.csv"
        again.write_text(files[name][0].read_text().replace(was, now))
        files[name].append(again)
    mine = league_table([read_tables(files)], model="base", batch=4).set_index("method").loc["mine"]
    assert (mine["causal_auc"], mine["aligned_one"]) == (0.7, 2.5)
    with pytest.raises(ConfigError, match=r"gradients were compared at, 4, 16, but is 5"):
        league_table([read_tables(files)], model="base", batch=5)
    with pytest.raises(DataError, match=r"files that are there, but .*no\.csv is not"):
        read_tables({"costs": [tmp_path / "no.csv"]})
    files["costs"][0].write_text("condition,arm\n")
    with pytest.raises(DataError, match="but lacks rate, seed, reached, steps, seconds"):
        read_tables(files)


def test_a_signal_with_a_privileged_look_is_not_asked_of_sheets() -> None:
    cfg = validated(composed("signal=rlsd", name="league"), LeagueConfig)
    with initialize_config_dir(str(CONF), version_base=None):
        assert list(programs(cfg, "rlsd")) == ["signals", "costs"]


def test_the_programs_of_a_new_signal_can_run() -> None:
    cfg = validated(composed("signal=oar_gn", "seeds=2", name="league"), LeagueConfig)
    with initialize_config_dir(str(CONF), version_base=None):
        made = programs(cfg, "oar_gn")
        assert list(made) == ["signals", "gradients", "costs"]
        for alone in (
            "vineppo",
            "spo_tree",
            "prime",
        ):  # nothing can be said of their tokens without an engine, or training
            assert list(programs(cfg, alone)) == ["costs"]
    signals = validated(composed(*made["signals"][1:], name="signals"), SignalsConfig)
    assert list(signals.signals) == signals.shown == ["oar_p", "uniform", "oar_gn"]
    assert list(signals.models) == ["base"]
    gradients = validated(composed(*made["gradients"][1:], name="gradient_signal"), GradientSignalConfig)
    study = validated(composed(*made["costs"][1:], name="study"), StudyConfig)
    assert list(gradients.arms) == ["oracle_signed", "grpo", "oar_gn"]
    assert list(study.arms) == ["grpo", "oar_gn"]
    with initialize_config_dir(str(CONF), version_base=None):
        for condition in gradients.conditions.values():
            assert list(planned_gradients(gradients, condition)) == list(gradients.arms)
        jobs = planned_study(study)
    assert len(jobs) == len(REGIMES) * 2 * 2
    assert {(job.arm, job.settings.learner.steps) for job in jobs} == {("grpo", 40), ("oar_gn", 300)}


def test_a_page_says_how_little_a_signal_was_trained_here() -> None:
    cfg = validated(composed("signal=oar_gn", "seeds=2", name="league"), LeagueConfig)
    given = {"groups": {}, "regimes": REGIMES, "provenance": {"command": "x"}, "follows": ""}
    told = "trained here at one rate, 0.0003, under 2 seeds, for at most 300 steps"
    assert f"`oar_gn` was\n{told}" in rendered(TEMPLATE, league=cfg, **given)
    assert "trained here" not in rendered(TEMPLATE, league=replace(cfg, signal=None), **given)


def test_text_as_hydra_reads_it() -> None:
    assert text({"a": ["b=[c]"], "d": []}) == "{a: ['b=[c]'], d: []}"


def test_a_page_and_what_is_refused(tmp_path: Path) -> None:
    files = write_tables(tmp_path)
    given = [f"tables.{name}=[{files[name][0]}]" for name in files]
    code, output = run("league", *given, f"output_dir={tmp_path / 'out'}")
    assert code == 0, output
    assert "| `mine` | 0.80 | 0.40 |  | 2.00 |" in output
    assert "| 30 |  | not reached |  | 2.00 |" in output
    assert pd.read_csv(tmp_path / "out" / "league.csv").shape == (2, len(COLUMNS))
    code, output = run("league", "signal=nobody", f"output_dir={tmp_path / 'out'}")
    assert (code, output.count("\n")) == (2, 1)
    assert "nobody" in output
