"""Files that are either the old one or the whole new one, never half of it; folders that are whole or not there."""

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from oar.common.errors import OarError


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yields a temporary path in the same folder; it takes the name `path` only when the block ends without an error.

    The folder is made if it is missing. Raises OarError when the disk is full or the folder cannot be written; what
    was there before is then unchanged.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(path)
    except OSError as error:
        raise OarError(
            f"{path} could not be written ({error.strerror or error}): free space or choose another folder; "
            "what was there before is unchanged."
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Yields a temporary folder beside `folder`; it takes that name only when the block ends without an error.

    Where two processes make the same folder, the first to end publishes it, and what the other made is removed. Raises
    OarError when it cannot be written.
    """
    unfinished = folder.with_name(f".{folder.name}-{uuid.uuid4().hex[:8]}")
    try:
        unfinished.mkdir(parents=True)
        yield unfinished
        os.rename(unfinished, folder)
    except (OSError, SafetensorError) as error:  # safetensors raises its own where the disk is full
        if not folder.exists():
            raise OarError(f"{folder} could not be written ({error}): free space or choose another folder.") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def write_text_atomic(path: Path, text: str) -> None:
    """Write `text` as UTF-8 through `atomic_path`."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def shown(path: Path) -> Path:
    """As a person types it: from the working folder on, where it lies below that."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
