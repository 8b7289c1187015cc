"""What a run pays besides its arithmetic: torch's deterministic mode, and weights that pass through shared memory."""

import copy
import shutil
import warnings
from pathlib import Path

import torch
from safetensors.torch import save_file

from experiments.gpu_check.device import DEVICE, GIB, best_of_three, sized, spent
from experiments.gpu_check.engine import OwnSampling
from experiments.gpu_check.findings import Findings
from experiments.gpu_check.learners import TINY, learner_on, random_model
from experiments.gpu_check.settings import architecture, step_config
from oar.common.kernels import choose_kernels
from oar.learner.distributed import joined
from oar.model.parameters import full_weights

GATHERED = sized(2 * architecture("qwen2_5_7b").parameters, 2**24)  # bytes of Qwen2.5-7B in bfloat16
TRANSFER = sized(2**31, 2**22)  # bytes that are really written
SHARED_MEMORY = Path("/dev/shm")


def run(findings: Findings) -> None:
    """The fill of `torch.empty`, which operations warn, whether two steps give the same bytes; then /dev/shm."""
    with findings.piece("fill of torch.empty"):
        _fill(findings)
    with findings.piece("deterministic steps"):
        _twice(findings)
    with findings.piece("shared memory"):
        _shared_memory(findings)


def _fill(findings: Findings) -> None:
    def empty() -> torch.Tensor:
        return torch.empty(GATHERED // 2, dtype=torch.bfloat16, device=DEVICE)

    for deterministic in (False, True):
        torch.use_deterministic_algorithms(deterministic, warn_only=True)
        name = f"torch.empty of {GATHERED / GIB:.3g} GiB{', deterministic' if deterministic else ''}"
        findings.at_most(name, 1000 * best_of_three(empty).seconds, sized(1000.0, 60000.0), "ms")
    torch.use_deterministic_algorithms(False)


def _twice(findings: Findings) -> None:
    """As a run has it, in bfloat16 on one rank."""
    choose_kernels()
    cfg = step_config((2, 4), (4, 128), dtype="bfloat16", method="oar_g")
    start, engine, ends = random_model(TINY, spread=0.1), OwnSampling(cfg, sized((20, 60), (4, 8))), []
    with warnings.catch_warnings(record=True) as caught, joined(cfg.learner) as ranks:
        warnings.simplefilter("always")
        for _ in range(2):
            learner = learner_on(cfg, copy.deepcopy(start), engine, ranks)
            learner.training_step()
            learner.training_step()
            ends.append({name: weight.clone() for name, weight in full_weights(learner.model)})
    same = all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])
    findings.note(
        "two runs end in the same bytes", "yes" if same else "no", "", "yes, where every operation has such a form"
    )
    named = {str(one.message).split(" ", 1)[0] for one in caught if "deterministic" in str(one.message)}
    findings.note("operations without a deterministic form", ", ".join(sorted(named)) or "none")


def _shared_memory(findings: Findings) -> None:
    """sync=checkpoint writes all weights there at each push."""
    free = shutil.disk_usage(SHARED_MEMORY).free
    findings.note("free in /dev/shm", free / GIB, "GiB", f"{GATHERED / GIB:.3g} GiB for this model")
    size = min(TRANSFER, free // 2)
    weights, file = torch.zeros(size, dtype=torch.uint8, device=DEVICE), SHARED_MEMORY / "oar-gpu-check.safetensors"
    try:
        with spent() as took:
            save_file({"weights": weights.cpu()}, file)
    finally:
        file.unlink(missing_ok=True)
    findings.note("from the device to /dev/shm", size / took.seconds / 1e9, "GB/s")
    findings.note("seconds of a push of 7B by that", GATHERED / (size / took.seconds), "s", "25 to 30 were estimated")
