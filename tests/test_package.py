"""What `pip install` gives somebody without a clone: the library and its data, no test and no experiment."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.little_installed import hiding_all_but

ROOT = Path(__file__).parents[1]
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
BEHIND = "import sys; sys.path.insert(0, sys.argv[1])\n"  # before this environment, which lends what pip would have installed
METHOD = (
    "".join(re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "YOUR_TRAINER.md").read_text(), flags=re.DOTALL))
    + """
import oar
assert oar.__file__.startswith(sys.argv[1]), oar.__file__
assert not {"hydra", "omegaconf", "vllm", "wandb", "trl"} & set(sys.modules)
weights = credit.token_weights[0, :4]
assert torch.isclose(weights.mean(), torch.tensor(1.0)) and weights.std() > 0, weights
"""
)
TRL = """
from oar.integrations import trl
from oar.tasks.template import load_template
assert trl.__file__.startswith(sys.argv[1]), trl.__file__
assert trl.OARGRPOConfig("here", method="oar_g", use_cpu=True, bf16=False, report_to=[]).method == "oar_g"
assert load_template("qwen_math").marker
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: setuptools leaves folders beside what it builds."""
    source, folder = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("oar", "experiments", "tests", "conf", "examples"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    (source / "artifacts").mkdir()
    (source / "artifacts" / "model.safetensors").touch()
    subprocess.run([*PIP, "wheel", "--no-deps", "--no-build-isolation", "-w", folder, source], check=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty folder with the wheel in it and nothing else."""
    folder = tmp_path_factory.mktemp("installed")
    subprocess.run([*PIP, "install", "--no-deps", "--no-index", "--target", folder, wheel], check=True)
    return folder


def test_the_wheel_holds_the_library_and_all_of_its_data(wheel: Path) -> None:
    names = {name for name in ZipFile(wheel).namelist() if ".dist-info/" not in name}
    tracked = {path for path in (ROOT / "oar").rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert names == {path.relative_to(ROOT).as_posix() for path in tracked}


def test_its_metadata(wheel: Path) -> None:
    files = {name.rpartition("/")[2]: name for name in ZipFile(wheel).namelist() if ".dist-info/" in name}
    metadata = ZipFile(wheel).read(files["METADATA"]).decode()
    (version,) = re.findall(r"^Version: (.*)$", metadata, flags=re.MULTILINE)
    assert f"version: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert re.search(rf"^## {re.escape(version)}\b", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert "Provides-Extra: trl" in metadata
    assert "oar = oar.command_line.__main__:main" in ZipFile(wheel).read(files["entry_points.txt"]).decode()


@pytest.mark.parametrize(
    ("code", "extra"), [(METHOD, None), pytest.param(TRL, "trl", marks=pytest.mark.slow)], ids=["method", "trl"]
)
def test_it_works_with_what_pip_installs_and_no_more(
    code: str, extra: str | None, installed: Path, tmp_path: Path
) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = project["dependencies"] + (project["optional-dependencies"][extra] if extra else [])
    command = [sys.executable, "-I", "-c", hiding_all_but(needed) + BEHIND + code, str(installed)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_its_command_says_where_the_programs_are(installed: Path, tmp_path: Path) -> None:
    code = BEHIND + "from oar.command_line.__main__ import main; sys.argv[1:] = sys.argv[2:]; main()"
    for arguments in ([], ["train", "method=oar_g"]):
        command = [sys.executable, "-I", "-c", code, str(installed), *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("error: The programs of OAR are in its repository")
