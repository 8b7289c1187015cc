"""What .ci/run runs, by what the commits of the last day touched; `make` only says what it was asked for."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DAY = 24 * 60 * 60
LAST = 1_700_000_000  # when HEAD was committed; what the clock says does not matter


def git(repository: Path, *arguments: str, at: int = LAST) -> None:
    dates = {"GIT_AUTHOR_DATE": f"@{at} +0000", "GIT_COMMITTER_DATE": f"@{at} +0000"}
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", *who, *arguments], cwd=repository, check=True, env=os.environ | dates, capture_output=True)


def history(repository: Path, *commits: tuple[int, str]) -> None:
    """Commits of one file each, so many seconds before LAST."""
    (repository / ".ci").mkdir(parents=True)
    shutil.copy(ROOT / ".ci" / "run", repository / ".ci" / "run")
    git(repository, "init", "-q")
    for number, (before, name) in enumerate(commits):
        file = repository / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(str(number))
        git(repository, "add", ".")
        git(repository, "commit", "-q", "-m", name, at=LAST - before)


def made(repository: Path, tmp_path: Path) -> list[str]:
    """The targets that .ci/run asks make for."""
    said = tmp_path / "said"
    (tmp_path / "bin").mkdir()
    make = tmp_path / "bin" / "make"
    make.write_text(f'#!/bin/sh\necho "$@" >> {said}\n')
    make.chmod(0o755)
    path = {"PATH": f"{make.parent}:{os.environ['PATH']}"}
    subprocess.run([repository / ".ci" / "run"], check=True, env=os.environ | path, capture_output=True)
    return said.read_text().split()


@pytest.mark.parametrize(
    ("commits", "expected"),
    [
        ([(2 * DAY, "oar/a.py"), (0, "docs/a.md")], "test"),
        ([(2 * DAY, "docs/a.md"), (0, "oar/a.py")], "test-all"),
        ([(2 * DAY, "docs/a.md"), (60, "oar/a.py"), (0, "docs/a.md")], "test-all"),  # not the last commit
        ([(2 * DAY, "docs/a.md"), (0, "requirements/cpu.txt")], "test-all"),
        ([(2 * DAY, "docs/a.md"), (0, "experiments/study/oar/a.py")], "test"),
        ([(2 * DAY, "docs/a.md"), (0, "experiments/gpu_check/a.py")], "test-all"),
    ],
)
def test_slow_tests_run_where_what_they_guard_was_touched(
    commits: list[tuple[int, str]], expected: str, tmp_path: Path
) -> None:
    history(tmp_path / "repository", *commits)
    assert made(tmp_path / "repository", tmp_path) == ["setup", expected]


def test_a_branch_that_was_merged_counts(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    history(repository, (2 * DAY, "docs/a.md"))
    git(repository, "checkout", "-q", "-b", "other")
    (repository / "oar").mkdir()
    (repository / "oar" / "a.py").write_text("1")
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", "old work", at=LAST - 2 * DAY + 1)
    git(repository, "checkout", "-q", "-")
    git(repository, "merge", "-q", "--no-ff", "-m", "merged", "other")
    assert made(repository, tmp_path) == ["setup", "test-all"]


def test_a_clone_of_one_commit_has_touched_everything(tmp_path: Path) -> None:
    history(tmp_path / "repository", (2 * DAY, "oar/a.py"), (0, "docs/a.md"))
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{tmp_path}/repository", "clone")
    assert made(tmp_path / "clone", tmp_path) == ["setup", "test-all"]
