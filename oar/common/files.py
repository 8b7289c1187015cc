"""Files that are either the old one or the whole new one, never half of it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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


def write_text_atomic(path: Path, text: str) -> None:
    """Write `text` as UTF-8 through `atomic_path`."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def shown(path: Path) -> Path:
    """As a person types it: from the working folder on, where it lies below that."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
