"""The command `oar`: it lists and starts the programs of experiments/, from any folder, and a shell completes its line."""

import fcntl
import os
import pty
import shutil
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from select import select

import pytest

from oar.command_line.completion import offers
from oar.command_line.overrides import CONF
from oar.command_line.programs import name_of, programs
from oar.common.errors import ConfigError

ROOT = CONF.parent
ENVIRONMENT = os.environ | {
    "PYTHONPATH": str(ROOT),
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    "OAR": f"{sys.executable} -m oar.command_line",  # its script may be of another checkout
}


def oar(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "oar.command_line", *arguments]
    return subprocess.run(command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=False)


def test_every_program_is_listed_with_what_it_does(tmp_path: Path) -> None:
    listed, asked = oar(tmp_path), oar(tmp_path, "--help")
    assert (listed.returncode, listed.stderr, listed.stdout) == (0, "", asked.stdout)
    for name in ("train", "evaluate", "table1", "inspect_credit", "plan", "fit", "doctor", "gpu_check"):
        assert name in programs()
    assert "shared" not in programs()
    for name in programs():
        (line,) = [line for line in listed.stdout.splitlines() if line.startswith(f"  {name} ")]
        about = line.removeprefix(f"  {name} ").strip()
        assert len(about) > 10, name
        assert "python -m" not in about, name


def test_a_program_is_the_same_from_any_folder(tmp_path: Path) -> None:
    done = oar(tmp_path, "train", "--cfg", "job", "gating.tau=0.25")
    assert (done.returncode, done.stderr) == (0, "")
    assert "tau: 0.25" in done.stdout
    done = oar(tmp_path, "train", "gating.tau=2", "output_dir=run")
    assert done.returncode == 2
    assert done.stderr.startswith("error: gating.tau must be between 0 and 1")


def test_a_package_of_the_same_name_where_it_is_called_does_not_hide_the_programs(tmp_path: Path) -> None:
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "__init__.py").touch()
    assert oar(tmp_path, "train", "--cfg", "job").returncode == 0


def test_the_help_of_a_program_is_its_own(tmp_path: Path) -> None:
    assert "Configuration groups" in oar(tmp_path, "train", "--help").stdout
    assert "--no-engine" in oar(tmp_path, "doctor", "--help").stdout


def test_an_abbreviation_is_the_one_program_that_it_begins() -> None:
    assert name_of("inspect") == "inspect_credit"
    assert name_of("check-signal") == "check_signal"
    assert name_of("train") == "train"  # which train_with_trl begins with as well


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["trian", "method=oar_g"], "oar has no command trian; did you mean train?"),
        (["bench"], "oar bench may be one of bench_importance, bench_learner, "),
        (["xyzzy"], "oar --help lists them"),
        (["completion", "fish"], "bash or zsh"),
    ],
)
def test_a_mistake_is_one_sentence(arguments: list[str], said: str, tmp_path: Path) -> None:
    done = oar(tmp_path, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert said in line


def test_without_the_repository_its_programs_are_told_to_be_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("oar.command_line.programs.ROOT", tmp_path)
    with pytest.raises(ConfigError, match="in its repository and not in this package: clone it"):
        name_of("train")


@pytest.mark.parametrize(
    ("typed", "wanted"),
    [
        ("tra", "train"),
        ("comp", "completion"),
        ("completion z", "zsh"),
        ("train method=oracle_w", "method=oracle_written"),
        ("train debug=o", "debug=one_step"),
        ("inspect st", "step="),
        ("table1 method=oar_g gating.thr", "gating.threshold="),
    ],
)
def test_what_is_offered(typed: str, wanted: str) -> None:
    assert wanted in offers(typed)
    assert all(one.startswith(typed.rpartition(" ")[2]) for one in offers(typed))


def test_nothing_is_offered_where_a_program_has_no_keys() -> None:
    assert offers("doctor --n") == []


def test_bash_completes_at_a_terminal() -> None:
    """A line, TAB, and what stands there then."""
    terminal, inside = pty.openpty()
    fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 1000, 0, 0))  # no line is wrapped
    command = ["bash", "--norc", "--noprofile", "-i"]
    environment = ENVIRONMENT | {"TERM": "dumb", "INPUTRC": "/dev/null"}
    bash = subprocess.Popen(
        command, stdin=inside, stdout=inside, stderr=inside, cwd=ROOT, env=environment, start_new_session=True
    )
    try:
        os.write(terminal, b'oar() { $OAR "$@"; }; eval "$(oar completion bash)"\n')
        for line, rest in (
            ("oar inspec", "t_credit "),
            ("oar train -m method=oar_g gating.thr", "eshold="),
            (f"{sys.executable} -m experiments.study experiment=pa", "ys"),
        ):
            os.write(terminal, f"\x15{line}\t".encode())
            assert seen(terminal, line + rest)
    finally:
        bash.kill()
        bash.wait()
        os.close(terminal)
        os.close(inside)


def seen(terminal: int, text: str) -> bool:
    """Whether the terminal shows the text, sooner or later; the limit is for what never comes."""
    shown, deadline = "", time.monotonic() + 300
    while text not in shown and time.monotonic() < deadline:
        if select([terminal], [], [], 1)[0]:
            shown += os.read(terminal, 4096).decode(errors="replace")
    return text in shown


BASH = """
oar() { $OAR "$@"; }
eval "$(oar completion bash)"
compopt() { echo "$@"; }  # bash's own works only while a line is completed
COMP_LINE=$1 COMP_POINT=${#1} COMP_WORDS=($1)
_oar_complete
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("oar tra", ["train", "train_with_trl"]),
        ("oar train method=oracle_w", ["oracle_written"]),  # readline breaks words at =
        ("oar train gating.thr", ["-o", "nospace", "gating.threshold="]),
        ("python -m experiments.inspec", ["experiments.inspect_credit"]),
        ("python -m experiments.study experiment=pa", ["pays"]),
        ("python experiments/train.py profile=pa", ["paper"]),
        ("python other.py pa", [""]),
    ],
)
def test_bash_completes(line: str, completed: list[str]) -> None:
    done = subprocess.run(
        ["bash", "-c", BASH, "bash", line], env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [word for word in completed if word]


ZSH = """
compdef() { :; }
compadd() { print -l -- ${@:4}; }
eval "$(${=OAR} completion zsh)"
oar() { ${=OAR} "$@"; }
words=(oar train method=oracle_w) CURRENT=3 PREFIX=method=oracle_w
_oar_complete
"""


@pytest.mark.skipif(shutil.which("zsh") is None, reason="there is no zsh here")
def test_zsh_completes() -> None:
    done = subprocess.run(["zsh", "-f", "-c", ZSH], env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["method=oracle_written"]
