"""What the README says is there and runs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

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
