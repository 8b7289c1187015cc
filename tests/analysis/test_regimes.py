"""Where else a claim holds, by hand, and how the ledger and its page say so."""

from pathlib import Path

import pandas as pd
import pytest

from oar.analysis.claims.claims import load_claims
from oar.analysis.claims.ledger import REGIMES, ledger
from oar.analysis.claims.page import claims_section, read_ledger
from oar.analysis.claims.regimes import regimes
from oar.analysis.reports.page import write_csv
from oar.analysis.thresholds import best_rates, best_runs, median_steps
from oar.runs.folder import read_run
from tests.experiments.made_runs import make_run

STEPS = {  # by regime and arm the steps of its seeds; None: it does not get there
    "one": {
        "oar_p": [90, 100, 110, 90, 90],
        "grpo": [120, None, 130, 100, 100],
        "oar_g": [100, 120, 100, 90, 100],  # sooner than OAR-P under one seed, later under three
    },
    "share": {"oar_p": [80, None, 90, 80, 80], "grpo": [70, 75, 70, 70, 70]},
    "all": {
        "grpo": [50, 60, 55, 50, None],
        "oar_s": [20, 30, 25, 20, 20],
        "oar_g": [10, 15, 10, 10],  # four seeds
        "oar_p": [90, 95, 99, 90, None],  # neither gets there under the fifth
    },
}


def costs() -> pd.DataFrame:
    rows = [
        (condition, arm, 1e-3, seed, steps is not None, steps or 400)
        for condition, arms in STEPS.items()
        for arm, several in arms.items()
        for seed, steps in enumerate(several, start=1)
    ]
    rows += [("one", "oar_p", 1e-4, seed, True, 300) for seed in range(1, 6)]  # its worse rate
    return pd.DataFrame(rows, columns=["condition", "arm", "rate", "seed", "reached", "steps"])


def test_of_rates_with_equal_medians_the_one_with_fewer_most_steps_counts() -> None:
    rows = [
        ("one", "a", rate, seed, True, steps)
        for rate, several in ((1, [10, 20, 90]), (2, [15, 20, 30]))
        for seed, steps in enumerate(several)
    ]
    table = pd.DataFrame(
        [*rows, ("one", "b", 1, 0, False, 5)], columns=["condition", "arm", "rate", "seed", "reached", "steps"]
    )
    assert best_rates(table) == {("one", "a"): 2, ("one", "b"): 1}
    assert best_runs(table)["steps"].tolist() == [15, 20, 30, 5]
    assert median_steps(table).to_dict() == {("one", "a"): 20, ("one", "b"): float("inf")}


def test_the_median_decides_which_rate_is_the_best_whatever_one_seed_takes() -> None:
    rows = [("one", "a", 1, seed, steps < 400, steps) for seed, steps in enumerate((10, 20, 400))]
    rows += [("one", "a", 2, seed, True, 25) for seed in range(3)]
    table = pd.DataFrame(rows, columns=["condition", "arm", "rate", "seed", "reached", "steps"])
    assert best_rates(table) == {("one", "a"): 1}
    assert median_steps(table).to_dict() == {("one", "a"): 20}


def test_a_rate_under_fewer_seeds_does_not_replace_one_under_more() -> None:
    rows = [("one", "a", rate, seed, True, steps) for rate, seed, steps in ((1, 1, 40), (1, 2, 60), (2, 1, 10))]
    table = pd.DataFrame(rows, columns=["condition", "arm", "rate", "seed", "reached", "steps"])
    assert best_rates(table) == {("one", "a"): 1}
    assert best_runs(table)["steps"].tolist() == [40, 60]


def test_rates_of_many_seeds_are_held_against_each_other_over_those_that_they_share() -> None:
    """Rate 2 has lucky seeds besides; under the five that both have rate 1 is sooner. Rate 3 was run under four."""
    steps = {1: [40, 40, 50, 70, 70], 2: [60, 60, 60, 60, 60, *[10] * 6], 3: [5, 5, 5, 5]}
    rows = [("one", "a", rate, seed, True, each) for rate, seeds in steps.items() for seed, each in enumerate(seeds)]
    table = pd.DataFrame(rows, columns=["condition", "arm", "rate", "seed", "reached", "steps"])
    assert best_rates(table) == {("one", "a"): 1}
    # seeds 0 to 4 at rate 1, the others at rate 2, which alone they were run at; rate 3 does not count
    assert best_runs(table)["steps"].tolist() == [*steps[1], *[10] * 6]
    assert median_steps(table).to_dict() == {("one", "a"): 10}  # of all eleven: those of rate 1 alone have 50
    apart = table[(table["rate"] == 1) | (table["seed"] > 5)]  # no seed in common: each over its own
    assert best_rates(apart) == {("one", "a"): 2}
    assert best_rates(table.head(0)) == {}
    assert best_runs(table.head(0)).empty
    assert median_steps(table.head(0)).empty


def test_by_hand() -> None:
    assert regimes("oar_p", "grpo", costs()) == {"one": "holds", "share": "fails", "all": "open"}
    assert regimes("grpo", "oar_p", costs()) == {"one": "fails", "share": "holds", "all": "open"}
    assert regimes("oar_p", "oar_g", costs()) == {"one": "open", "all": "open"}  # in all of four seeds alone
    assert regimes("oar_s", "grpo", costs()) == {"all": "holds"}
    assert regimes("nobody", "grpo", costs()) == {}


@pytest.mark.parametrize(
    ("sooner", "seeds", "verdict"), [(4, 4, "open"), (5, 5, "holds"), (5, 6, "open"), (9, 10, "holds")]
)
def test_how_many_seeds_tell(sooner: int, seeds: int, verdict: str) -> None:
    """As the page says: of equal arms a given one has all of five in 3 % of studies, nine of ten or more in 1 %."""
    rows = [("one", "grpo", 1, seed, True, 50) for seed in range(seeds)]
    rows += [("one", "oar_p", 1, seed, True, 40 if seed < sooner else 60) for seed in range(seeds)]
    rows += [("one", "oar_p", 1, seeds + 1, True, 10)]  # GRPO was not run under it
    table = pd.DataFrame(rows, columns=["condition", "arm", "rate", "seed", "reached", "steps"])
    assert regimes("oar_p", "grpo", table) == {"one": verdict}


def test_the_ledger_has_a_column_and_its_page_shows_it(tmp_path: Path) -> None:
    scores = {"a": [1.0, 0.5, 0.5, 0.0]}
    runs = [
        read_run(make_run(tmp_path / str(seed), method, seed, scores), arm=method)
        for method in ("grpo", "oar_g", "oar_p")
        for seed in (1, 2, 3)
    ]
    table = ledger(load_claims(), runs, {"embedded": 3}, costs())
    found = table.set_index(["paper_claim", "metric"])[REGIMES]
    assert found["OAR-P > GRPO", "avg@k"] == "one: holds, share: fails, all: open"
    assert found["OAR-P > OAR-G", "pass@1"] == "one: open, all: open"
    assert set(found) == {"", "one: holds, share: fails, all: open", "one: open, all: open"}
    write_csv(table, tmp_path / "claims.csv")
    again = read_ledger(tmp_path / "claims.csv")
    page = claims_section(again, "embedded")
    assert "| verdict | on sheets | quantity |" in page
    assert "** | one: holds, share: fails, all: open | accuracy, OAR-P − GRPO |" in page.replace("(3 of 3 seeds)", "")
    before = ledger(load_claims(), runs, {"embedded": 3})
    assert "| on sheets |" not in claims_section(before, "embedded")
    write_csv(before.drop(columns=REGIMES), tmp_path / "old.csv")
    assert "| on sheets |" not in claims_section(read_ledger(tmp_path / "old.csv"), "embedded")
