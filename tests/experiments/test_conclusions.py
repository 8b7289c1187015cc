"""What people say of a folder's runs is filled in from its tables: how soon arms are, in words, and the committed pages."""

import re
import shutil
from pathlib import Path

import pandas as pd
import pytest

from experiments.findings import CONCLUSION, conclusion, page_of
from experiments.shared.steps import Steps, number_in_words
from oar.analysis.reports.page import conclusion_of, with_conclusion
from oar.analysis.thresholds import STEPS, best_runs, steps_to_threshold
from oar.common.errors import DataError
from oar.common.provenance import ROOT

CEILINGS = ROOT / "results" / "ceilings"
FIRST, LATE = [1, 2, 3, 4, 5], [11, 12, 13, 14, 15]

RUNS: dict[tuple[str, str], dict[float, list[int | None]]] = {
    # by rate the steps under seeds 1, 2, ...; None: not reached in 90
    ("one", "grpo"): {1e-4: [40, 60, None, 50], 1e-3: [10]},
    ("one", "oar_p"): {1e-4: [20, 60, 80], 1e-3: [None, 30, 30]},
    ("one", "random"): {1e-4: [None, None, None]},
    ("one", "oar_g"): {1e-4: [10]},
    ("share", "grpo"): {1e-4: [40]},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = [
        (condition, arm, rate, seed, steps or 90, steps is not None)
        for (condition, arm), at in RUNS.items()
        for rate, runs in at.items()
        for seed, steps in enumerate(runs, 1)
    ]
    pd.DataFrame(rows, columns=["condition", "arm", "rate", "seed", "steps", "reached"]).to_csv(
        tmp_path / STEPS, index=False
    )
    return tmp_path


def test_how_soon_an_arm_is_by_hand(folder: Path) -> None:
    steps = Steps(folder)
    assert steps.took("one", "grpo") == "40 to 60 under three of four"  # seed 1 alone has the larger rate
    assert steps.took("one", "grpo", [1, 2]) == "40 to 60"
    assert steps.took("one", "grpo", [1], 1e-3) == "10"
    assert steps.took("one", "random", [1, 2]) == "more than 90 under each"
    assert steps.took("one", "oar_p") == "30 under two of three"  # 60 in the median at the other rate
    assert steps.took("one", "oar_p", rate=1e-4) == "20 to 80"
    assert steps.took("one", "oar_p", [1]) == "20"  # the best rate is that under the seeds that are asked for
    assert (steps.median("one", "grpo"), steps.median("one", "oar_p", rate=1e-4)) == (55, 60)
    assert [steps.reaches("one", arm) for arm in ("grpo", "random", "oar_g")] == ["three", "none", "each"]


def test_who_is_sooner_by_hand(folder: Path) -> None:
    steps = Steps(folder)
    # At the better rate of each: grpo 40, 60, none; oar_p none, 30, 30.
    assert (steps.sooner("one", "oar_p"), steps.sooner("one", "oar_p", later=True)) == ("two", "one")
    # At the smaller one: 40, 60, none against 20, 60, 80. Seed 4 has one of them alone.
    assert steps.sooner("one", "oar_p", rate=1e-4) == "two"
    assert steps.sooner("one", "oar_p", rate=1e-4, later=True) == "none"
    assert steps.sooner("one", "oar_p", [1], 1e-4) == "each"
    assert steps.sooner("one", "random", [3], than="grpo") == "none"  # neither gets there
    assert steps.sooner("one", "random", than="oar_p", later=True) == "two"
    assert (steps.seeds("one", "grpo"), steps.seeds("one", "grpo", "oar_p")) == (4, 3)


@pytest.mark.parametrize(
    ("condition", "arm", "seeds", "rate", "message"),
    [
        ("on", "grpo", [], None, "there is no condition on; did you mean one?"),
        ("share", "oar_p", [], None, "there is no arm oar_p."),
        ("one", "oar_g", [1, 2], None, "there is no seed 2"),
        ("one", "oar_g", [], 3e-4, "there is no rate 0.0003"),
    ],
)
def test_what_was_not_run_is_refused(
    folder: Path, condition: str, arm: str, seeds: list[int], rate: float | None, message: str
) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        Steps(folder).took(condition, arm, seeds, rate)


def test_arms_without_a_seed_in_common_are_refused(folder: Path) -> None:
    runs = pd.read_csv(folder / STEPS)
    runs.loc[runs["arm"] == "oar_g", "seed"] = 9
    runs.to_csv(folder / STEPS, index=False)
    with pytest.raises(DataError, match="oar_g, grpo must share seeds in one"):
        Steps(folder).sooner("one", "oar_g")


def test_numbers_in_words() -> None:
    said = [number_in_words(count) for count in (1, 12, 19, 20, 21, 35, 90, 99)]
    assert said == ["one", "twelve", "nineteen", "twenty", "twenty-one", "thirty-five", "ninety", "ninety-nine"]


def test_a_conclusion_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    page = tmp_path / "a.md"
    page.write_text("# A\n<!-- what follows -->\nold\n\nolder\n<!-- /what follows -->\nrest\n")
    page.write_text(with_conclusion(page.read_text(), r"new \1"))
    assert conclusion_of(page) == r"new \1"
    assert page.read_text() == "# A\n<!-- what follows -->\nnew \\1\n<!-- /what follows -->\nrest\n"
    with pytest.raises(DataError, match="write it anew"):
        with_conclusion("# A\n", "new")


def test_a_folder_without_runs_to_a_threshold_asks_its_other_tables(tmp_path: Path) -> None:
    (tmp_path / "scores.csv").write_text("arm,value\ngrpo,1.25\n")
    (tmp_path / CONCLUSION).write_text('GRPO has {{ number("scores.csv", arm="grpo") | fixed(2) }}.\n')
    assert conclusion(tmp_path) == "GRPO has 1.25."
    (tmp_path / CONCLUSION).write_text('GRPO takes {{ took("one", "grpo") }}.\n')
    with pytest.raises(DataError, match=r"steps\.csv, which is not there"):
        conclusion(tmp_path)


def test_a_folder_has_one_page(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="but has 0"):
        page_of(tmp_path)


@pytest.mark.parametrize("template", sorted((ROOT / "results").rglob(CONCLUSION)), ids=lambda path: path.parent.name)
def test_a_committed_page_says_what_the_committed_tables_say(template: Path) -> None:
    """Where this fails: `make findings`, which also overwrites what was typed on the page itself."""
    assert conclusion_of(page_of(template.parent)) == conclusion(template.parent)


def test_a_changed_table_changes_what_follows(tmp_path: Path) -> None:
    for file in (*CEILINGS.glob("*.csv"), CEILINGS / CONCLUSION):
        shutil.copy(file, tmp_path)
    before = conclusion(tmp_path).splitlines()
    runs = pd.read_csv(tmp_path / STEPS)
    late = (runs["condition"] == "one") & (runs["arm"] == "oar_p") & (runs["seed"] == 12) & (runs["rate"] == 5e-4)
    runs.loc[late, "steps"] = 90
    runs.to_csv(tmp_path / STEPS, index=False)
    changed = [line for line, old in zip(conclusion(tmp_path).splitlines(), before, strict=True) if line != old]
    assert len(changed) == 1
    assert changed[0].startswith("- OAR-P takes 60 to 90, OAR-G")


class TestWordsOfCeilings:
    """Words of its template that stand for numbers: where one of these fails, the template must say something else."""

    RUNS = pd.read_csv(CEILINGS / STEPS)

    def misses(self, condition: str, rate: float, seeds: list[int]) -> pd.Series:
        """By arm under how many of the seeds it does not get there, of those that were run under all of them."""
        runs = self.RUNS
        own = runs[(runs["condition"] == condition) & (runs["rate"] == rate) & runs["seed"].isin(seeds)]
        own = own[own.groupby("arm")["seed"].transform("nunique") == len(seeds)]
        return (~own["reached"]).groupby(own["arm"]).sum()

    def test_who_gets_there_at_both_rates_where_one_decides(self) -> None:
        misses = pd.concat([self.misses("one", rate, LATE) for rate in (3e-4, 5e-4)], axis=1, join="inner").sum(axis=1)
        methods = misses[~misses.index.str.contains("shuffled|position|even|oracle_causal")]
        assert set(methods[methods == 0].index) == {
            *("oar_p", "oar_ga", "oar_s_outcome", "oracle_signed", "oracle_signed_unit")
        }

    def test_who_bears_the_larger_rate_where_all_count(self) -> None:
        misses = self.misses("share", 5e-4, LATE)
        gone = {*misses[misses >= 3].index}
        assert {"grpo", "oar_p", "oar_g", "oar_gn", "oar_ga", "reward_head", "oracle_unsigned"} <= gone
        assert {arm for arm in misses.index if arm.endswith("_shuffled")} <= gone
        bearing = {arm for arm in misses.index if arm not in gone}
        assert bearing == {
            *("oar_s", "oar_s_gradient", "oar_s_attention", "oar_s_outcome", "oracle_sign_matched", "oracle_signed")
        }

    def test_weights_without_a_sign_follow_grpo(self) -> None:
        steps = Steps(CEILINGS)
        for arm in ("oar_g", "oar_gn", "oar_ga", "oracle_unsigned"):
            sides = steps.sooner("share", arm, LATE), steps.sooner("share", arm, LATE, later=True)
            assert sides == ("three", "two"), arm

    def test_learning_rates_too_large_for_small_batches(self) -> None:
        small = self.RUNS[~self.RUNS["condition"].str.endswith("_large") & (self.RUNS["rate"] == 1e-3)]
        assert len(small) > 5
        assert not small["reached"].any()

    def test_exact_values_as_they_are_learn_nothing_where_all_must_be_right(self) -> None:
        steps = steps_to_threshold(best_runs(self.RUNS[self.RUNS["condition"] == "all"]))
        assert steps[self.RUNS["arm"] == "oracle_signed"].min() == float("inf")
