"""What the README says is there and runs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml

from experiments.shared.steps import Steps, number_in_words
from oar.analysis.thresholds import STEPS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PAGES = sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))


def test_the_example_of_a_trainer_runs() -> None:
    page = (ROOT / "docs" / "YOUR_TRAINER.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("tensor(") == 2


def test_the_readme_is_one_that_one_reads() -> None:
    assert len(README.splitlines()) <= 150


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "results/README.md", *PAGES])
def test_links_point_at_files(page: str) -> None:
    if page.startswith("docs/"):
        assert page == "docs/README.md" or f"({page[5:]})" in (ROOT / "docs" / "README.md").read_text(), (
            "not in the index"
        )
    file = ROOT / page
    for target in re.findall(r"\]\((?!http|#)([^)#]+)", file.read_text()):
        assert (file.parent / target).exists(), target


def test_the_workflow_runs_what_every_change_must_pass() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    (job,) = workflow["jobs"].values()
    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run"]
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


@pytest.mark.parametrize("form", ["bug", "result"])
def test_an_issue_form_asks_for_something(form: str) -> None:
    asked = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / f"{form}.yml").read_text())
    assert asked["name"]
    assert asked["description"]
    assert any(field.get("validations", {}).get("required") for field in asked["body"])


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"make ([a-z][a-z0-9-]+)", README):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def test_arguments_of_make_test_go_to_pytest_alone() -> None:
    said = subprocess.run(
        ["make", "-n", "test", "ARGS=-k uniform"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    (line,) = [line for line in said.stdout.splitlines() if "uniform" in line]
    assert "pytest" in line


def test_config_choices_exist() -> None:
    page = (ROOT / "docs" / "CONFIGURATION.md").read_text()
    for group in ("method", "reward", "gating", "probe", "counterfactual", "tracking"):
        (row,) = re.findall(rf"^\| `{group}` \| (.*) \|$", page, flags=re.MULTILINE)
        named = set(re.findall(r"`([a-z_]+)`", row)) - {"tau", "beta", "floor", "threshold"}
        assert named == {path.stem for path in (ROOT / "conf" / group).glob("*.yaml")}


@pytest.mark.parametrize("folder", ["table1", "smollm2/table1"])
def test_the_tables_are_the_measured_ones(folder: str) -> None:
    """Each table of the README is the first one of its page in results/, to the letter."""
    shown = README.split(f"<!-- {folder} -->\n")[1].split(f"<!-- /{folder} -->")[0].strip()
    report = (ROOT / "results" / folder / "table1.md").read_text()
    measured = re.search(r"^\| method \|.*?\n\n", report, flags=re.MULTILINE | re.DOTALL)
    assert measured is not None
    assert shown == measured[0].strip()


def test_the_map_is_the_measured_one() -> None:
    """A row of the README's map is one of the page's: it has not all of them."""
    shown = README.split("<!-- ceilings -->\n")[1].split("<!-- /ceilings -->")[0].strip().splitlines()
    measured = (ROOT / "results" / "ceilings" / "ceilings.md").read_text().splitlines()
    assert len(shown) > 2
    assert [row for row in shown if row not in measured] == []


def test_sentences_about_sheets_say_what_was_measured() -> None:
    folder = ROOT / "results" / "ceilings"
    steps, runs = Steps(folder), pd.read_csv(folder / STEPS)
    regimes, pair = ("one", "share", "all"), ("grpo", "oar_s_outcome")
    assert [steps.sooner(regime, "oar_s_outcome") for regime in regimes] == ["each"] * 3
    shared = sum(steps.seeds(regime, *pair) for regime in regimes)
    rates = runs[runs["arm"].isin(pair) & runs["rate"].isin([3e-4, 5e-4])].groupby(["condition", "seed"])["rate"]
    tuned = (rates.size().loc[list(regimes)] == 4).sum()  # two arms at two rates
    aligned = [
        own["alignment"].rank().corr(-own["steps"].rank())
        for _, own in pd.read_csv(folder / "alignment.csv").groupby("condition", sort=False)
    ]
    for said in (
        f"each of {number_in_words(shared)} seeds of `one`, `share` and `all`, {number_in_words(tuned)} of them with",
        "rank correlation {:.2f} in `one`, {:.2f} in `share`, {:.2f} in `all`".format(*aligned),
        f"sooner than GRPO under {steps.sooner('all', 'oar_s_outcome_even')} of "
        f"{number_in_words(steps.seeds('all', 'grpo', 'oar_s_outcome_even'))} seeds, and later than in its place under "
        f"{steps.sooner('all', 'oar_s_outcome_even', than='oar_s_outcome', later=True)}.",
    ):
        assert said in README


def test_sentences_about_sheets_of_a_pretrained_model_say_what_was_measured() -> None:
    steps = Steps(ROOT / "results" / "smollm2" / "ceilings")
    seeds = number_in_words(steps.seeds("one", "grpo", "oar_ga"))
    taken = f"takes {steps.took('one', 'oar_ga')} and GRPO {steps.took('one', 'grpo', rate=2e-5)} ({seeds} seeds)"
    assert taken in README
    own = [5, 6, 7]  # those of `oar_s_outcome`
    assert (
        f"takes {steps.took('share', 'oar_s_outcome')} and GRPO {steps.took('share', 'grpo', own)} (three seeds)"
        in README
    )
