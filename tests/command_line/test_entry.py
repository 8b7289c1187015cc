"""How programs are started and how they end: mistakes of the command line, faults of our own, paths, make."""

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from experiments import train
from experiments.study import __main__ as study
from experiments.table1 import __main__ as table1
from oar.command_line.entry import OURS
from oar.command_line.exit_codes import explain_errors
from oar.command_line.overrides import CONF
from oar.common.errors import ConfigError, did_you_mean
from tests.programs import SHELL

ROOT = CONF.parent
Program = Callable[..., tuple[int | str | None, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Program:
    """Exit code, output and errors of a program for these arguments."""
    monkeypatch.setattr("logging.config.dictConfig", lambda config: None)  # it would silence the loggers of other tests
    monkeypatch.chdir(tmp_path)

    def started(main: Callable[[], None], *arguments: str) -> tuple[int | str | None, str, str]:
        monkeypatch.setattr(sys, "argv", ["program", *arguments])
        code = None
        try:
            main()
        except SystemExit as ended:
            code = ended.code
        said = capsys.readouterr()
        return code, said.out, said.err

    return started


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("method=oarg", "did you mean oar_g?"),
        ("method=", "method must be one of "),
        ("profile=papr", "but is 'papr'; did you mean paper?"),
        ("hydra/launcher=jobli", "did you mean joblib?"),
        ("-m method=grpo,oarg", "did you mean oar_g?"),
        ("learner.step=5", "train has no key learner.step; did you mean learner.steps?"),
        ("methd=oar_g", "did you mean method?"),
        ("method=oar_g tau=0.5", "did you mean gating.tau?"),
        ("method=oar_g method.estimator.noise=1", "did you mean method.estimator.noise_std?"),
        ("~learner.step", "did you mean learner.steps?"),
        ("hydra.run.di=x", "did you mean hydra.run.dir?"),
        ("assume=paper", "train has no group assume; what it has: benchmark, "),
        ("+learner.steps=5", "leave out the + of +learner.steps=5"),
        ("+learner.stps=5", "did you mean steps?"),
        ("+foo=1", "foo"),
        ("learner.steps=abc", "learner.steps"),
        ("gating.tau=", "gating.tau"),
        ("gating.tau=${gating.tua}", "gating.tua"),
        ("seed=1,2", "type seed=[...] for a list, or -m"),
        ("model.path=a=b", "'model.path=a=b' cannot be read"),
        ("model.lora={r:64", "'model.lora={r:64' cannot be read"),
        ("template='r1", "cannot be read"),
        ("oar_g", "'oar_g' is no override: type KEY=VALUE."),
        ("=oar_g", "'=oar_g' is no override: type KEY=VALUE."),
        ("output_dir=${nowhere}", "nowhere"),
        ("--resolve", "--cfg"),
        ("method=mine --config-dir nowhere", "--config-dir must be a folder, but nowhere is none"),
    ],
)
def test_a_mistake_is_one_sentence(arguments: str, said: str, run: Program) -> None:
    code, _, errors = run(train.main, *arguments.split())
    assert code == 2
    (line,) = errors.splitlines()
    assert line.startswith("error: ")
    assert said in line


@pytest.mark.parametrize(
    "arguments", ["", "experiment=", "experiment=pay", "experiment=mask_artefacts", "experiment=omissions"]
)
def test_only_experiments_that_fit_are_offered(arguments: str, run: Program) -> None:
    code, _, errors = run(study.main, *arguments.split())
    assert code == 2
    (line,) = errors.splitlines()
    assert "pays" in line
    assert "proxy_mismatch" not in line
    assert "word_gradients" not in line


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/run"])
@pytest.mark.parametrize("key", ["output_dir=", "-m hydra.sweep.dir="])
def test_an_output_folder_that_cannot_be_is_one_sentence(place: str, key: str, run: Program, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, _, errors = run(train.main, *f"{key}{tmp_path / place}".split())
    assert code == 2
    (line,) = errors.splitlines()
    assert line.startswith(f"error: {tmp_path / place} cannot be made or written (")


def test_a_fault_of_our_own_keeps_its_traceback(run: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for fault in (ValueError("a bug"), FileNotFoundError(2, "a bug"), KeyError("a bug")):
        monkeypatch.setattr(train, "validated", lambda *_, fault=fault: (_ for _ in ()).throw(fault))
        with pytest.raises(type(fault), match="a bug") as raised:
            run(train.main, f"output_dir={tmp_path}")
        assert OURS in raised.value.__notes__


@pytest.mark.parametrize("arguments", ["experiments.plan", "experiments.train --help"])  # of ours, and of Hydra
def test_a_reader_that_has_gone_ends_a_program_without_a_word(arguments: str) -> None:
    """As in `python -m experiments.plan | head`."""
    started = subprocess.Popen(
        [sys.executable, "-m", *arguments.split()], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert started.stdout is not None
    started.stdout.close()
    _, errors = started.communicate()
    assert (started.returncode, errors) == (141, b"")


def test_a_broken_connection_keeps_its_traceback(run: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(train, "validated", lambda *_: (_ for _ in ()).throw(BrokenPipeError(32, "of an engine")))
    with pytest.raises(BrokenPipeError, match="of an engine"):
        run(train.main, f"output_dir={tmp_path}")


def test_what_hydra_offers_works(run: Program) -> None:
    for arguments, said in (
        ("--cfg job gating.tau=0.25", "tau: 0.25"),
        ("--help", "Configuration groups"),
        ("--info defaults", "method/grpo"),
        ("-sc install=bash", "hydra_bash_completion"),
    ):
        code, out, errors = run(train.main, *arguments.split())
        assert code in (0, None)
        assert said in out
        assert errors == ""


def test_help_needs_no_choice_of_a_group_that_has_no_default(run: Program) -> None:
    code, out, _ = run(study.main, "--help")
    assert code is None
    assert "parallel_runs: 2 # runs at a time" in out
    assert "experiment must be chosen: experiment=carry_over or ceilings" in out
    code, _, errors = run(study.main, "--help", "seds=3")  # a mistake stays one
    assert code == 2
    assert "did you mean seeds" in errors


def test_the_first_line_is_the_resolved_run(run: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oar.launch.supervisor.train", lambda cfg, folder: 0)
    code, out, _ = run(train.main, "method=oar_g", "learner.steps=7", "seed=3", "output_dir=here")
    assert code is None
    assert out.splitlines()[0] == "oar_g on embedded, data words, 7 steps, seed 3, profile embedded: here"


def test_table1_hands_overrides_of_runs_to_its_cells(run: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    monkeypatch.setattr(table1, "run_missing", lambda jobs, folder, parallel_runs: found.extend(jobs))
    monkeypatch.setattr(table1, "joint_provenance", lambda jobs, parallel_runs: sys.exit(0))
    typed = ("profile=single_gpu", "model.path=here", "gating.tau=0.25", "seeds=1", "steps=5", "methods=[oar_g]")
    assert run(table1.main, *typed)[0] == 0
    settings = [job.settings for job in found]
    assert [one.learner.steps for one in settings] == [0, 5]
    for one in settings:
        assert (one.profile, one.model.path, one.gating.tau, one.seed) == ("single_gpu", "here", 0.25, 1)


@pytest.mark.parametrize(
    ("main", "typed", "said"),
    [
        (table1.main, "seed=2", "seed cannot be given here: type seeds=3"),
        (table1.main, "method=oar_g", "type methods=[grpo,oar_g]"),
        (table1.main, "method.control=shuffled", "type shuffled=[oar_g]"),
        (table1.main, "learner.steps=5", "type steps=100"),
        (table1.main, "resume=auto", "type the same command again"),
        (study.main, "experiment=controls seed=2", "type seeds=3"),
        (study.main, "experiment=controls method=oar_g", "arms."),
        (study.main, "experiment=pays learner.batch_size=8", "conditions.small_batch sets it"),
        (
            study.main,
            "experiment=smollm2_parts arms_of.parts=[grpo]",
            "a new entry takes a plus: +arms_of.parts=[grpo]",
        ),
    ],
)
def test_what_a_table_or_study_sets_is_refused(main: Callable[[], None], typed: str, said: str, run: Program) -> None:
    code, _, errors = run(main, *typed.split())
    assert code == 2
    (line,) = errors.splitlines()
    assert said in line


def test_no_program_shadows_the_standard_library() -> None:
    modules = {path.stem for path in (ROOT / "experiments").iterdir()}
    assert not modules & sys.stdlib_module_names
    done = subprocess.run(
        [sys.executable, "experiments/train.py", "--cfg", "job"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "tau: 0.4" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "unknown", "known"),
    [
        ("train METHD=oar_g", "METHD", "METHOD"),
        ("train ARG=method=oar_g", "ARG", "ARGS"),
        ("train SEEDS=3", "SEEDS", "SEED"),
        ("sweep-gating PROFILE=paper", "PROFILE", "SEEDS"),
        ("lint ARGS=x", "ARGS", "PYTHON"),
    ],
)
def test_make_refuses_variables_that_a_target_does_not_know(arguments: str, unknown: str, known: str) -> None:
    done = make(*arguments.split())
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    refused, _, taken = line.partition(": its variables are ")
    assert refused.endswith(f" {unknown}")
    assert known in taken.rstrip(".").split()


def test_make_refuses_a_device_without_pins() -> None:
    done = make("setup", "DEVICE=tpu")
    assert (done.returncode, done.stdout) == (2, "")
    assert "DEVICE must be cpu or gpu, but is tpu" in done.stderr


def test_make_hands_variables_on() -> None:
    train_line = make("train", "METHOD=oar_g", "PROFILE=paper", "SEED=2", "STEPS=5", "OUT=here", "ARGS=resume=auto")
    assert train_line.stdout.split()[3:] == [
        "'method=oar_g'",
        "'profile=paper'",
        "'seed=2'",
        "'learner.steps=5'",
        "'output_dir=here'",
        "resume=auto",
    ]
    sweep = make("sweep-gating", "METHOD=oar_p", "SEEDS=3", "STEPS=5", "OUT=here").stdout
    assert "method=oar_p learner.steps=5 seed=1,2,3 gating.tau=0.2,0.4,0.7,0.9 gating.beta=1,2,4" in sweep
    assert 'repeat="make sweep-gating METHOD=oar_p SEEDS=3 STEPS=5 OUT=here"' in sweep


def test_the_page_of_a_sweep_repeats_what_args_added() -> None:
    typed = """'probe=as_mean' tracking.notes='"two words"' learner.lr=1e-3"""
    *_, line = make("sweep-gating", "OUT=here", f"ARGS={typed}").stdout.splitlines()
    (repeat,) = (word for word in shlex.split(line) if word.startswith("repeat="))
    command = OverridesParser.create().parse_override(repeat).value()
    assert shlex.split(command) == ["make", "sweep-gating", "OUT=here", f"ARGS={typed}"]


def make(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """What make would do, set-up left out, as typed in a shell."""
    return subprocess.run(
        ["make", "-n", "-o", "setup", *arguments], cwd=ROOT, env=SHELL, capture_output=True, text=True, check=False
    )


def test_the_nearest_name_is_meant() -> None:
    known = ["gating.tau", "learner.threads", "rollout.threads", "seed"]
    assert did_you_mean("tau", known) == "; did you mean gating.tau?"
    assert did_you_mean("learnr.threads", known) == "; did you mean learner.threads?"
    assert did_you_mean("sede", known) == "; did you mean seed?"
    assert did_you_mean("template", known) == ""
    assert ConfigError.exit_code == 2


def test_a_full_disk_is_told_without_a_file_that_nobody_knows(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit), explain_errors(), Path("/dev/full").open("w", buffering=1) as full:
        full.write("a line\n")
    assert capsys.readouterr().err == "error: No space left on device; make room or choose another folder.\n"
