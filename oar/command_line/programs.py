"""The programs of experiments/, as they are found there: their names, what each does, and how one is started."""

import ast
import os
import re
import sys
from pathlib import Path
from typing import NoReturn

from oar.common.errors import ConfigError, did_you_mean

ROOT = Path(__file__).resolve().parents[2]


def programs() -> dict[str, Path]:
    """Their files by name. Raises ConfigError where OAR was installed without its repository."""
    folder = ROOT / "experiments"
    files = [*folder.glob("[!_]*.py"), *folder.glob("*/__main__.py")]
    if not files:
        raise ConfigError(
            "The programs of OAR are in its repository and not in this package: clone it, run `make setup` there, and "
            "type .venv/bin/oar."
        )
    return dict(sorted((file.stem if file.parent == folder else file.parent.name, file) for file in files))


def name_of(typed: str) -> str:
    """The program that is meant: by its name, with - for _ if you like, or the beginning of no other. Raises ConfigError."""
    known, name = programs(), typed.replace("-", "_")
    found = [name] if name in known else [one for one in known if one.startswith(name)]
    if len(found) > 1:
        raise ConfigError(f"oar {typed} may be one of {', '.join(found)}: type more of its name.")
    if not found:
        raise ConfigError(f"oar has no command {typed}{did_you_mean(name, known) or ': oar --help lists them.'}")
    return found[0]


def about(file: Path) -> str:
    """The first line of a program's docstring, up to an example of its command."""
    line = (ast.get_docstring(ast.parse(file.read_text())) or "").partition("\n")[0]
    return re.split(r"[,:]? `(?:python|make) ", line)[0].rstrip(".")


def start(name: str, arguments: list[str]) -> NoReturn:
    """Become that program. It finds experiments/ from any folder, and so do the processes that it starts.

    The folder that it is called from comes last: it may have a package `experiments` of its own, and classes of one's own.
    """
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH"), os.getcwd()]))
    command = [sys.executable, "-m", f"experiments.{name}", *arguments]
    os.execve(sys.executable, command, {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"})
