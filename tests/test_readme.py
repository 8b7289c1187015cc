"""What the README says is there and runs."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_example_runs():
    (code,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("tensor(") == 2


def test_links_point_at_files():
    for target in re.findall(r"\]\((?!http)([^)]+)\)", README):
        assert (ROOT / target).exists(), target


def test_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"make ([a-z][a-z0-9-]+)", README):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def test_arguments_of_make_test_go_to_pytest_alone():
    said = subprocess.run(
        ["make", "-n", "test", "ARGS=-k uniform"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    (line,) = [line for line in said.stdout.splitlines() if "uniform" in line]
    assert "pytest" in line


def test_config_choices_exist():
    for group in ("method", "gating", "probe", "counterfactual", "tracking"):
        (row,) = re.findall(rf"^\| `{group}` \| (.*) \|$", README, flags=re.MULTILINE)
        named = set(re.findall(r"`([a-z_]+)`", row)) - {"tau", "beta", "floor", "threshold"}
        assert named == {path.stem for path in (ROOT / "conf" / group).glob("*.yaml")}


def test_the_table_is_the_measured_one():
    """The README's table is the first one of results/embedded/table1.md, to the letter."""
    shown = README.split("<!-- table1 -->\n")[1].split("<!-- /table1 -->")[0].strip()
    report = (ROOT / "results" / "embedded" / "table1.md").read_text()
    measured = re.search(r"^\| method \|.*?\n\n", report, flags=re.MULTILINE | re.DOTALL)
    assert measured is not None
    assert shown == measured[0].strip()
