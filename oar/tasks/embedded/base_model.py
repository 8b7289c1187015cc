"""Publishes the taught base model as an ordinary Hugging Face folder, made once per configuration."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

from transformers import GenerationConfig
from transformers.utils.logging import disable_progress_bar

from oar.common.errors import DataError
from oar.common.files import whole_folder
from oar.tasks.embedded.teaching import Taught, Teaching, teach

SOURCE_VERSION = 1  # raise it whenever a generator, language, tokenizer or teaching changes what comes out
RECORD = "teaching.json"  # written last: how the folder was made


def ensure_base_model(config: Teaching, root: Path, progress: Callable[[str], None]) -> Path:
    """The folder of the base model of `config` under `root`; taught and published first where it is not there yet.

    OarError when it cannot be written, DataError when what stands there was not made here.
    """
    folder = root / model_key(config)
    if folder.exists():
        return checked(folder)
    progress(f"teaching the base model of {folder}; with OAR_TEACH_DIR=FOLDER it is kept wherever you start from")
    taught = teach(config, progress)
    with whole_folder(folder) as unfinished:
        _write(taught, config, unfinished)
    return checked(folder)


def model_key(config: Teaching) -> str:
    """12 hex digits that stand for the configuration, whose keys differ by task, and the version of the source.

    `tie_embeddings` came later: left out where it is false, so that models taught before keep their names.
    """
    content = {key: value for key, value in asdict(config).items() if key != "tie_embeddings" or value}
    made_of = json.dumps({"source": SOURCE_VERSION, **content}, sort_keys=True)
    return hashlib.sha256(made_of.encode()).hexdigest()[:12]


def checked(folder: Path) -> Path:
    """The folder itself. Raises DataError where it is no finished model of ours."""
    if not (folder / RECORD).is_file():
        raise DataError(f"{folder} holds no finished base model ({RECORD} is missing): remove it and run again.")
    return folder


def _write(taught: Taught, config: Teaching, folder: Path) -> None:
    tokenizer = taught.tokenizer
    taught.model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    disable_progress_bar()
    taught.model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    record = {
        "config": asdict(config),
        "source_version": SOURCE_VERSION,
        "steps": taught.steps,
        "seconds": round(taught.seconds, 1),
        "accuracy": taught.accuracy,
        "mean_accuracy": taught.mean_accuracy,
        "versions": {name: version(name) for name in ("torch", "transformers", "tokenizers")},
    }
    (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n")
