"""The check of a first GPU: it runs with little installed, one broken part hides no other, and no CPU's number is a GPU's."""

import json
import os
import subprocess
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import pytest
import torch

from experiments.gpu_check import learners, page
from experiments.gpu_check.__main__ import RESULTS, chosen, main, origin, out_folder
from experiments.gpu_check.findings import Findings, read
from experiments.gpu_check.parts import methods
from experiments.gpu_check.registry import PARTS, TOTAL_S
from experiments.gpu_check.runner import Part, run_parts
from experiments.gpu_check.settings import METHODS, train_config
from oar.common.errors import ConfigError
from oar.config import TrainConfig, build, validated
from tests.config.test_config import composed
from tests.little_installed import hiding_all_but
from tests.pretended_gpu import pretended_gpu

ROOT = Path(__file__).parents[2]
without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")

INSTALLED = ["torch", "transformers", "peft", "requests"]  # as docs/GPU_CHECK.md says


def broken(name: str) -> Part:
    return Part(name, f"tests.experiments.broken_parts:{name}", 3.0, "It goes wrong.")


def run_check(folder: Path, *arguments: str, hide: bool) -> tuple[int, dict, dict]:
    """The command in a process of its own, one thread: exit code, its last line, gpu_check.json."""
    path = [str(ROOT)]
    if hide:
        (folder / "hiding").mkdir()
        (folder / "hiding" / "sitecustomize.py").write_text(hiding_all_but(INSTALLED))
        path.insert(0, str(folder / "hiding"))
    out = folder / "out"
    done = subprocess.run(
        [sys.executable, "-m", "experiments.gpu_check", "--out", str(out), *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout.splitlines()[-1]), json.loads((out / page.JSON).read_text())


@pytest.mark.slow
@pytest.mark.system
@pytest.mark.timeout(3600)
@without_gpu
def test_the_whole_check_runs_small_with_little_installed(tmp_path: Path) -> None:
    code, said, found = run_check(tmp_path, hide=True)
    messages = {part["name"]: (part["verdict"], part["message"]) for part in found["parts"]}
    assert list(messages) == [part.name for part in PARTS]
    assert [verdict for verdict, _ in messages.values() if verdict not in ("passed", "not run")] == [], messages
    assert {name for name, (verdict, _) in messages.items() if verdict == "not run"} == {"ipc", "trl"}
    assert "trl" in messages["trl"][1]
    assert (code, said["in_order"], said["full"], found["full"]) == (0, True, False, False)
    assert found["provenance"]["versions"]["torch"] == torch.__version__
    assert all(part["findings"] for part in found["parts"] if part["verdict"] == "passed")
    text = (tmp_path / "out" / page.PAGE).read_text()
    assert all(f"## {part.name}" in text for part in PARTS)
    assert not RESULTS.exists() or not (RESULTS / "logs").exists()


@pytest.mark.slow
@pytest.mark.system
@pytest.mark.timeout(3600)
@without_gpu
def test_trls_part_runs_where_trl_is(tmp_path: Path) -> None:
    pytest.importorskip("trl")
    code, said, _ = run_check(tmp_path, "--only", "trl", hide=False)
    assert said["parts"] == {"trl": "passed"}
    assert code == 0


@without_gpu
def test_one_part_runs_small(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--out", str(tmp_path), "--only", "grading"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["parts"] == {"grading": "passed"}
    (part,) = json.loads((tmp_path / page.JSON).read_text())["parts"]
    assert all(finding["holds"] for finding in part["findings"])
    assert "| every answer is found | yes | 8 of 8 | yes |" in (tmp_path / page.PAGE).read_text()


def test_a_broken_part_hides_no_other(tmp_path: Path) -> None:
    expected = {
        "raises": "failed",
        "kills_itself": "failed",
        "hangs": "too slow",
        "does_not_hold": "failed",
        "fails_in_a_case": "failed",
        "cannot_run": "not run",
        "passes": "passed",
    }
    parts = [broken(name) for name in expected]
    lines = list(run_parts(parts, tmp_path, lambda part: 3.0 if part.name == "hangs" else 600.0))
    assert {line.name: line.verdict for line in lines} == expected
    found = {line.name: line for line in lines}
    assert [line.name for line in lines if line.in_order] == ["cannot_run", "passes"]
    for name in ("raises", "kills_itself"):  # what was measured before is not lost
        assert found[name].findings[0].name == "before"
    assert "CUDA out of memory" in found["raises"].message
    assert "broken_parts.py:" in found["raises"].message
    assert "signal 9" in found["kills_itself"].message
    assert "2 of 2 do not hold" in found["does_not_hold"].message
    assert "1 of 2 do not hold, first first: ValueError: a wrong shape" in found["fails_in_a_case"].message
    assert [finding.name for finding in found["fails_in_a_case"].findings] == ["first", "second: it"]
    assert "no such thing" in found["cannot_run"].message
    page.write(tmp_path / "page", lines, origin_here(), full=True)
    assert (tmp_path / "page" / page.PAGE).read_text().count("**no**") == 4


def origin_here() -> dict:
    return origin(datetime.now(UTC), {"git_commit": "a" * 40, "git_dirty": False})


def test_an_error_from_a_folder_beside_the_checkout_is_one_line(tmp_path: Path) -> None:
    """An environment `oar-env` beside `oar`: the path begins alike and is no part of it."""
    beside = f"{ROOT}-env/lib/python3.11/json/decoder.py"
    with Findings(tmp_path / "lines").piece("reads"):
        exec(compile("raise ValueError('no JSON')", beside, "exec"), {})
    (found,), _ = read(tmp_path / "lines")
    assert (found.name, found.holds) == ("reads", False)
    assert str(found.value).startswith("ValueError: no JSON")


def test_parts_that_run_again_replace_their_own_lines(tmp_path: Path) -> None:
    def run(*names: str) -> dict:
        lines = list(run_parts([broken(name) for name in names], tmp_path / "logs", lambda _: 600.0))
        page.write(tmp_path, lines, origin_here(), full=True)
        return json.loads((tmp_path / page.JSON).read_text())

    first = run("passes", "does_not_hold")
    again = run("passes")
    assert [part["name"] for part in again["parts"]] == ["passes", "does_not_hold"]
    assert again["parts"][1] == first["parts"][1]
    page.write(tmp_path, [], origin_here(), full=False)  # of another size: nothing is taken over
    assert json.loads((tmp_path / page.JSON).read_text())["parts"] == []


@without_gpu
def test_results_gpu_is_not_written_without_a_gpu(tmp_path: Path) -> None:
    before = sorted(RESULTS.rglob("*")) if RESULTS.exists() else None
    for folder in (RESULTS, RESULTS / "here", ROOT / "results" / "table1" / ".." / "gpu_check"):
        with pytest.raises(ConfigError, match="results/gpu_check"):
            main(["--out", str(folder), "--only", "ipc"])
    assert RESULTS not in [out_folder(None, full=False), *out_folder(None, full=False).parents]
    assert (sorted(RESULTS.rglob("*")) if RESULTS.exists() else None) == before
    assert out_folder(None, full=True) == RESULTS


def test_the_limits_add_up_to_what_is_promised() -> None:
    assert sum(part.limit_s for part in PARTS) <= TOTAL_S == 20 * 60


def test_parts_are_chosen_by_name() -> None:
    assert [part.name for part in chosen("wide,kernels")] == ["kernels", "wide"]
    for wrong in ("kernel", ","):
        with pytest.raises(ConfigError, match="--only"):
            chosen(wrong)


@pytest.mark.parametrize(
    ("profile", "method"), [*(("embedded", name) for name in METHODS), ("single_gpu", "oar_g"), ("paper", "shuffled")]
)
def test_settings_are_what_hydra_composes(profile: str, method: str) -> None:
    ours = train_config(profile, method=method, counterfactual="knockout")
    overrides = (f"profile={profile}", f"method={method}", "counterfactual=knockout", "model.path=x", "probe=as_mean")
    theirs = validated(composed(*overrides), TrainConfig)
    assert build("method.estimator", theirs.method.estimator) == build("method.estimator", ours.method.estimator)
    for group in ("method", "gating", "probe", "counterfactual", "rollout", "sync", "learner"):
        assert asdict(getattr(ours, group)) == asdict(getattr(theirs, group)), group
    assert ours.model.dtype == theirs.model.dtype
    assert ours.tracking.group == theirs.tracking.group
    if profile == "embedded":  # the others have data of their own; the check stays with word problems
        assert (ours.data, ours.benchmark, ours.evaluation) == (theirs.data, theirs.benchmark, theirs.evaluation)


def test_a_part_mixes_no_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own code on a pretended GPU, from the draw to the comparison; of word problems and of sheets."""
    names = ("oar_p", "oar_g, noise of conf/", "oracle_signed", "oracle_unsigned")
    chosen = [one for one in methods.variants() if one.name in names]
    assert len(chosen) == 4
    monkeypatch.setattr(methods, "variants", lambda: chosen)
    monkeypatch.setattr(methods, "DEVICE", torch.device("cuda"))
    with pretended_gpu():
        methods.run(Findings(tmp_path / "methods.jsonl"))
    found, _ = read(tmp_path / "methods.jsonl")
    assert len(found) == 2 * 7 + 2 * 6  # the oracles have no gate
    assert [finding for finding in found if not finding.holds] == []


def test_a_peak_belongs_to_the_innermost_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    peaks = iter([10, 7, 20])  # of the update before importance, of importance, of the update after it
    monkeypatch.setattr(learners, "FULL", True)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: next(peaks))
    watch = learners.Watch()
    with watch("update"), watch("importance"):
        pass
    assert watch.peaks == {"scoring": 0, "update": 20, "importance": 7}


def test_every_choice_of_conf_is_compared_with_the_cpu() -> None:
    """A new counterfactual, probe or gate must not be left out."""
    compared = " ".join(f"{variant.name} {variant.groups}" for variant in methods.variants())
    for group in ("method", "counterfactual", "probe", "gating"):
        for path in (ROOT / "conf" / group).glob("*.yaml"):
            # All variants have these; a warm-up is one probe, then the other, and a reward model's needs a folder with one.
            default = path.stem in ("warmup", "pad", "bilevel", "as_mean", "reward_model")
            assert default or path.stem in compared, path
