"""The benchmark of the verifier: a whole small run, and what it refuses."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(*overrides: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "experiments.bench_verifier", "plain=1000", "latex=16", "workers=1", *overrides]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_a_small_run_ends_with_one_json_object(tmp_path: Path) -> None:
    done = run(f"output_dir={tmp_path}", "timeout_s=20")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["items_per_minute"] == result["plain"]["items_per_minute"] > 0
    assert result["latex"]["items_per_minute"] > 0
    assert result["plain"]["items"] == 1000
    saved = json.loads((tmp_path / "bench_verifier.json").read_text())
    assert saved["results"] == result
    assert saved["provenance"]["versions"]


def test_bad_values_are_refused(tmp_path: Path) -> None:
    done = run(f"output_dir={tmp_path}", "plain=0")
    assert done.returncode == 2
    assert "plain must be at least 1, got 0" in done.stderr
