"""Which findings hold on another model: verdicts by hand, the committed bounds, programs that run once, what is refused."""

import math
from pathlib import Path

import pandas as pd
import pytest

from experiments.shared.tables import Tables
from experiments.survives.__main__ import SurvivesConfig
from experiments.survives.costs import costs
from experiments.survives.judged import COLUMNS, HERE, THERE, Finding, judged
from oar.common.errors import ConfigError, DataError
from oar.common.provenance import ROOT
from oar.config import validated
from tests.config.test_config import composed
from tests.programs import run

TABLE = "recall/recall.csv"


def write_table(folder: Path, **signals: tuple[float, float, float]) -> Tables:
    (folder / TABLE).parent.mkdir(parents=True, exist_ok=True)
    rows = [(name, *estimate) for name, estimate in signals.items()]
    pd.DataFrame(rows, columns=["signal", "value", "low", "high"]).to_csv(folder / TABLE, index=False)
    return Tables(folder)


def finding(signal: str, **bound: float) -> Finding:
    return Finding(f"of {signal}", {"file": TABLE, "signal": signal}, **bound)


@pytest.mark.parametrize(
    ("interval", "above", "below"),
    [
        ((0.6, 0.8), "holds", "does not hold"),
        ((0.5, 0.8), "cannot be told", "does not hold"),  # a bound that is just reached is not passed
        ((0.4, 0.6), "cannot be told", "cannot be told"),
        ((0.2, 0.5), "does not hold", "cannot be told"),
        ((0.2, 0.4), "does not hold", "holds"),
        ((math.nan, math.nan), "cannot be told", "cannot be told"),
    ],
)
def test_verdicts_by_hand(interval: tuple[float, float], above: str, below: str) -> None:
    assert finding("x", above=0.5).verdict(*interval) == above
    assert finding("x", below=0.5).verdict(*interval) == below


def test_few_completions_show_nothing(tmp_path: Path) -> None:
    here = write_table(tmp_path / "here", sure=(0.7, 0.6, 0.8))
    verdicts = {}
    for count in (2, 10):
        there = write_table(tmp_path / f"of_{count}", sure=(1.0, 1.0, 1.0))
        file = tmp_path / f"of_{count}" / TABLE
        pd.read_csv(file).assign(n=count).to_csv(file, index=False)
        (row,) = judged({"sure": finding("sure", above=0.5)}, here, there).query("model == @THERE").to_dict("records")
        assert row["completions"] == count
        verdicts[count] = row["verdict"]
    assert verdicts == {2: "cannot be told", 10: "holds"}


def test_a_finding_is_what_the_first_model_shows(tmp_path: Path) -> None:
    here = write_table(tmp_path / "here", sure=(0.7, 0.6, 0.8), unsure=(0.6, 0.4, 0.8))
    there = write_table(tmp_path / "there", sure=(0.3, 0.2, 0.4), unsure=(0.9, 0.8, 1.0), renamed=(0.9, 0.8, 1.0))
    findings = {name: finding(name, above=0.5) for name in ("sure", "unsure")}
    findings["other_row"] = Finding("", {"file": TABLE, "signal": "sure"}, {"signal": "renamed"}, above=0.5)
    table = judged(findings, here, there)
    assert list(table.columns) == COLUMNS
    verdicts = table.set_index(["finding", "model"])["verdict"].unstack("model")
    assert verdicts[THERE].to_dict() == {
        "other_row": "holds",
        "sure": "does not hold",
        "unsure": "not shown before",  # whatever the second model shows
    }
    assert verdicts[HERE].to_dict() == {"other_row": "holds", "sure": "holds", "unsure": "cannot be told"}
    values = table.set_index(["finding", "model"])[["value", "low", "high"]]
    assert values.loc[("other_row", THERE)].tolist() == [0.9, 0.8, 1.0]


def test_what_was_not_measured_is_no_verdict_and_a_missing_row_is_a_mistake(tmp_path: Path) -> None:
    here = write_table(tmp_path / "here", sure=(0.7, 0.6, 0.8))
    (row,) = (
        judged({"sure": finding("sure", above=0.5)}, here, Tables(tmp_path)).query("model == @THERE").to_dict("records")
    )
    assert row["verdict"] == "not measured"
    assert math.isnan(row["value"])
    with pytest.raises(DataError, match="no signal sure"):
        judged({"sure": finding("sure", above=0.5)}, here, write_table(tmp_path / "there", other=(1, 1, 1)))


def test_a_condition_that_was_not_measured_yet_is_no_verdict(tmp_path: Path) -> None:
    tables = {name: write_table(tmp_path / name, sure=(0.7, 0.6, 0.8)) for name in ("here", "there")}
    for name, conditions in {"here": ["short", "long"], "there": ["short"]}.items():
        file = tmp_path / name / TABLE
        table = pd.read_csv(file)
        pd.concat([table.assign(condition=one) for one in conditions]).to_csv(file, index=False)
    given = {}
    for condition in ("short", "long"):
        given[condition] = finding("sure", above=0.5)
        given[condition].where["condition"] = condition
    found = judged(given, tables["here"], tables["there"]).query("model == @THERE").set_index("finding")["verdict"]
    assert found.to_dict() == {"short": "holds", "long": "not measured"}
    write_table(tmp_path / "there", sure=(0.7, 0.6, 0.8))  # which knows of no conditions
    with pytest.raises(DataError, match="has no column condition"):
        judged(given, tables["here"], Tables(tmp_path / "there"))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"where": {"file": TABLE}}, "one of above and below"),
        ({"where": {"file": TABLE}, "above": 0.0, "below": 0.0}, "one of above and below"),
        ({"where": {"signal": "oar_p"}, "above": 0.0}, "must name the file"),
    ],
)
def test_half_a_finding_is_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Finding("says", **wrong)  # type: ignore[arg-type]


def test_every_finding_is_one_of_the_committed_tables() -> None:
    """So no sentence of conf/experiment/smollm2.yaml says of the embedded model what its tables do not show."""
    cfg = validated(composed(name="survives"), SurvivesConfig)
    table = judged(cfg.findings, Tables(ROOT / cfg.embedded), Tables(ROOT / "nowhere"))
    shown = table[table["model"] == HERE].set_index("finding")["verdict"]
    assert shown[shown != "holds"].to_dict() == {}
    measured = {one.where["file"].split("/")[0] for one in cfg.findings.values()}
    assert measured <= set(cfg.programs)


def test_its_programs_can_be_composed_and_know_what_is_asked_of_them() -> None:
    cfg = validated(composed(name="survives"), SurvivesConfig)
    made = {
        name: composed(*overrides, name=module.removeprefix("experiments."))
        for name, (module, *overrides) in cfg.programs.items()
    }
    for finding in cfg.findings.values():
        where = finding.where | finding.there
        program = made[where["file"].split("/")[0]]
        assert where.get("condition", "english") in program.get("conditions", ["english"])
        assert where.get("model", "base") in program.get("models", ["base"])
        for name in (*where.get("signal", "uniform").split(" - "), where.get("arm", "grpo")):
            assert name in {*program.get("signals", []), *program.get("arms", []), "uniform", "grpo"}, finding.says


def test_costs_are_those_of_whole_steps_on_both_models() -> None:
    def table(*rows: tuple[str, str, str, float]) -> pd.DataFrame:
        return pd.DataFrame(rows, columns=["part", "method", "metric", "value"])

    small = table(("synthetic", "oar_g", "step_ratio", 9.0), ("steps", "oar_g", "step_ratio", 1.2))
    large = table(
        *(("methods", name, "step_ratio", ratio) for name, ratio in (("grpo", 1.0), ("oar_g", 1.3))),
        *(("methods", name, "total_s", seconds) for name, seconds in (("oar_g", 13.0), ("grpo", 10.0))),
        *(("methods", name, "step_peak_mib", size) for name, size in (("grpo", 3000.0), ("oar_g", 3100.0))),
    )
    found = costs(small, large)
    assert list(found["method"]) == ["grpo", "oar_g"]
    assert found["embedded"].isna().tolist() == [True, False]
    assert found.set_index("method").loc["oar_g"].tolist() == [1.2, 1.3, 13.0, 3100.0]


def test_a_program_that_has_its_page_is_not_run_again(tmp_path: Path) -> None:
    here, out = tmp_path / "here", tmp_path / "out"
    write_table(here, sure=(0.7, 0.6, 0.8))
    write_table(out, sure=(0.3, 0.2, 0.4))
    (out / "recall" / "provenance.json").write_text("{}")
    found = f"{{sure: {{says: it is sure, where: {{file: {TABLE}, signal: sure}}, above: 0.5}}}}"
    given = ["~findings", f"+findings={found}", "~programs", f"embedded={here}", f"output_dir={out}"]
    code, output = run("survives", *given, "+programs={recall: [experiments.none]}")
    assert code == 0, output
    assert "| it is sure | above 0.5 | 0.70 [0.60, 0.80] | 0.30 [0.20, 0.40] |  | **does not hold** |" in output
    assert (out / "smollm2.png").is_file()
    code, output = run("survives", *given, "+programs={other: [experiments.none]}")
    assert code == 2
    assert "experiments.none ended with exit code 1" in output
    code, output = run("survives", *given, "embedded=nowhere", "+programs={other: [experiments.none]}")
    assert code == 2
    assert "A number is asked of nowhere/recall/recall.csv, which is not there" in output
    assert "experiments.none" not in output  # before any program, which takes hours
