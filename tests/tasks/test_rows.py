"""Reading: what is no data file is named by file and line, and a hub by what to do without it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from oar.common.errors import DataError
from oar.common.processes import ChildProcess
from oar.tasks.data.rows import HUB_DEADLINE_S, HUB_REQUEST_S, file_rows
from tests.conftest import wait_until
from tests.tasks.fake_hub import COMMIT

ROOT = Path(__file__).parents[2]
LOAD = """
import sys
from oar.common.errors import DataError
from oar.tasks.data.rows import hub_rows
try:
    rows = hub_rows("some/set", "main", "test", sys.argv[1], "benchmark.path")
    print(rows.values, rows.origin)
except DataError as error:
    print("error:", error)
"""


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl", b'{"a": 1}\n{"a": \n', "a.jsonl, line 2: must be one JSON object, but is not JSON"),
        (
            "n.jsonl",
            b'{"a": ' + b"9" * 5000 + b"}",
            "n.jsonl, line 1: must be one JSON object, but is not JSON .*4300 digits",
        ),
        ("r.jsonl", b'{"a": ' + b"[" * 99999 + b"]" * 99999 + b"}", "r.jsonl, line 1: .* is not JSON .*recursion"),
        ("b.jsonl", b'{"a": 1}\n\n[1]\n', "b.jsonl, line 3: must be one JSON object, but is a list"),
        ("c.jsonl", '{"a": 1}\n{"a": "é"}\n'.encode("latin-1"), "c.jsonl, line 2: must be UTF-8"),
        ("d.jsonl", '{"a": 1}'.encode("utf-16"), "d.jsonl, line 1: must be UTF-8"),
        ("e.jsonl", b"\n \n", "e.jsonl must hold at least one problem"),
        ("f.csv", b"a\n1\n", r"f.csv must be a .jsonl or .parquet file, but ends in '.csv'"),
        ("g.parquet", b"no parquet", "g.parquet must be a Parquet file"),
    ],
)
def test_what_is_no_data_file(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=said) as caught:
        file_rows(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere.jsonl cannot be read \(No such file"):
        file_rows(tmp_path / "nowhere.jsonl")


def test_a_byte_order_mark_is_no_part_of_the_data(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"a": 1}\n')
    assert file_rows(tmp_path / "a.jsonl").values == [{"a": 1}]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A data set as the hub holds it."""
    folder = tmp_path / "repository"
    folder.mkdir()
    card = "configs:\n- config_name: main\n  data_files:\n  - split: test\n    path: test.jsonl"
    (folder / "README.md").write_text(f"---\n{card}\n---\n")
    (folder / "test.jsonl").write_text('{"question": "q", "answer": 142.0}\n')
    return folder


def load(tmp_path: Path, endpoint: str, revision: str = COMMIT, **environment: str) -> str:
    """What a process that asks this hub says last."""
    env = os.environ | {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", LOAD, revision],
        env=env | environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    return done.stdout.splitlines()[-1]


def start_hub(tmp_path: Path, repository: Path, *arguments: str) -> tuple[ChildProcess, str]:
    process = ChildProcess(
        [sys.executable, str(ROOT / "tests/tasks/fake_hub.py"), str(repository), *arguments],
        log_path=tmp_path / "hub.log",
    )
    wait_until(lambda: "listening on" in process.tail(), "the hub does not start")
    return process, f"http://127.0.0.1:{process.tail().split()[-1]}"


def test_a_pinned_revision_comes_from_the_hub_and_then_from_the_cache(tmp_path: Path, repository: Path) -> None:
    process, url = start_hub(tmp_path, repository)
    with process:
        said = load(tmp_path, url)
        assert said.startswith("[{'question': 'q', 'answer': 142.0}]")
        assert f"'resolved': '{COMMIT}'" in said
    assert load(tmp_path, url, HF_HUB_OFFLINE="1") == said
    said = load(tmp_path, url, "f" * 40, HF_HUB_OFFLINE="1")
    assert said.startswith("error: ")
    assert f"which holds revision {COMMIT}" in said


@pytest.mark.parametrize(
    ("fault", "why"),
    [("hang", "ReadTimeout|no answer within 15 s"), ("http_500", "HTTP 500"), ("refused", "ConnectionError")],
)
def test_a_hub_out_of_reach_is_told(fault: str, why: str, tmp_path: Path, repository: Path) -> None:
    """By the first request, whose limits are the 20 seconds that `hub_rows` promises; its client would go on for minutes."""
    assert HUB_REQUEST_S < HUB_DEADLINE_S < 20
    process, url = start_hub(tmp_path, repository, *(["--fault", fault] if fault != "refused" else []))
    if fault == "refused":
        process.stop()
    with process:
        said = load(tmp_path, url)
    assert said.startswith("error: some/set (main, test, ")
    assert re.search(rf"the hub at {url} cannot be reached \(({why})\)", said)
    assert "benchmark.path=FILE" in said


def test_a_data_set_that_is_a_program_is_told(tmp_path: Path, repository: Path) -> None:
    """`datasets` runs none any more, and raises a RuntimeError."""
    (repository / "set.py").write_text("")
    process, url = start_hub(tmp_path, repository)
    with process:
        said = load(tmp_path, url)
    assert said.startswith("error: some/set (main, test, ")
    assert "scripts are no longer supported" in said
    assert "benchmark.path=FILE" in said


def test_a_split_that_is_not_there(tmp_path: Path, repository: Path) -> None:
    (repository / "README.md").write_text((repository / "README.md").read_text().replace("split: test", "split: train"))
    process, url = start_hub(tmp_path, repository)
    with process:
        said = load(tmp_path, url)
    assert said.startswith("error: ")
    assert "test" in said
    assert "benchmark.path=FILE" in said
