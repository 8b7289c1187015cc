"""The benchmark of the verifier: a whole small run, and what it refuses."""

import json
from pathlib import Path

from tests.programs import run

SMALL = ("plain=1000", "latex=16", "workers=1")


def test_a_small_run_ends_with_one_json_object(tmp_path: Path) -> None:
    code, output = run("bench_verifier", *SMALL, f"output_dir={tmp_path}", "timeout_s=20")
    assert code == 0, output
    result = json.loads(output.splitlines()[-1])
    assert result["items_per_minute"] == result["plain"]["items_per_minute"] > 0
    assert result["latex"]["items_per_minute"] > 0
    assert result["plain"]["items"] == 1000
    saved = json.loads((tmp_path / "bench_verifier.json").read_text())
    assert saved["results"] == result
    assert saved["provenance"]["versions"]


def test_bad_values_are_refused(tmp_path: Path) -> None:
    code, output = run("bench_verifier", *SMALL, f"output_dir={tmp_path}", "plain=0")
    assert code == 2
    assert "plain must be 1 or more, but is 0" in output
