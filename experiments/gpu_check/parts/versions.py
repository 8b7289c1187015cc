"""Does everything load, and do the unit tests of the credit signals pass with what is installed here?"""

import importlib
import importlib.util
import os
import pkgutil
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version

import torch

import oar.learner
import oar.method.importance
import oar.rollout
import oar.tasks
from experiments.gpu_check.device import FULL, sized
from experiments.gpu_check.findings import ROOT, Findings, NotRunError

PACKAGES = "torch transformers peft accelerate safetensors tokenizers numpy triton trl vllm".split()
ROOMS = (oar.method.importance, oar.learner, oar.rollout, oar.tasks)
# The engine's side, the command line, the verifier's algebra, the tables of evaluations.
NOT_NEEDED = ("vllm", "omegaconf", "math_verify", "pandas")
TESTS = sized(
    (
        *("tests/method/importance/test_hand_built.py", "tests/method/importance/test_recomputed_attention.py"),
        *("tests/method/importance/test_gradient.py", "tests/method/importance/test_controls.py"),
        *("tests/method/importance/test_perturbation.py::test_equals_naive", "tests/method/test_projection.py"),
        *("tests/method/test_logprobs.py", "tests/method/test_packing.py"),
    ),
    ("tests/method/importance/test_recomputed_attention.py",),
)
TESTS_LIMIT_S = sized(100, 500)


def run(findings: Findings) -> None:
    """Versions, imports, tests."""
    for package in PACKAGES:
        findings.note(package, _version(package))
    if FULL:
        gpu = torch.cuda.get_device_properties(0)
        findings.note("GPU", f"{gpu.name}, {gpu.total_memory / 2**30:.1f} GiB, compute {gpu.major}.{gpu.minor}")
        findings.note("CUDA of torch", str(torch.version.cuda))
        findings.note("NCCL of torch", ".".join(map(str, torch.cuda.nccl.version())))
        findings.true("bfloat16", torch.cuda.is_bf16_supported(), "the GPU computes in it")
    loaded = 0
    for room in ROOMS:
        for found in pkgutil.iter_modules(room.__path__, f"{room.__name__}."):
            if not found.name.endswith("__main__"):
                with findings.piece(f"import {found.name}"):
                    loaded += _loads(found.name)
    findings.note("modules that loaded", loaded, "", f"those that need none of {', '.join(NOT_NEEDED)}")
    with findings.piece("unit tests"):
        _unit_tests(findings)


def _loads(module: str) -> bool:
    """False where it needs what is not needed here, and not installed."""
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in NOT_NEEDED:
            raise
        return False
    return True


def _unit_tests(findings: Findings) -> None:
    missing = [name for name in ("pytest", "hypothesis") if importlib.util.find_spec(name) is None]
    if missing:
        raise NotRunError(f"{', '.join(missing)} is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore", *TESTS],
        cwd=ROOT,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},  # whatever else is installed there
        capture_output=True,
        text=True,
        check=False,
        timeout=TESTS_LIMIT_S,
    )
    print(done.stdout[-4000:], done.stderr[-2000:])
    counts = {kind: int(count) for count, kind in re.findall(r"(\d+) (passed|failed|error)", done.stdout)}
    findings.at_least("unit tests that passed", counts.get("passed", 0), 1)
    findings.at_most("unit tests that failed", counts.get("failed", 0) + counts.get("error", 0), 0)
    findings.true("pytest's exit code is 0", done.returncode == 0, f"0, came {done.returncode}")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
