"""What is made once, in a file that is named by the hash of all that decides it."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from oar.common.files import atomic_path
from oar.common.provenance import config_hash

if TYPE_CHECKING:
    import pandas as pd

Made = TypeVar("Made")


def kept_path(folder: Path, name: str, made_of: Mapping[str, object], suffix: str = "") -> Path:
    """`folder/name-<hash><suffix>`: what anything else made has another path.

    made_of: plain JSON values, among them `oar.common.provenance.code_hash` where code decides the content.
    """
    return folder / f"{name}-{config_hash(made_of)[:12]}{suffix}"


def kept(
    path: Path, make: Callable[[], Made], write: Callable[[Made, Path], None], read: Callable[[Path], Made]
) -> Made:
    """What `read` finds at `path`; where nothing is there, what `make` gives is written first, whole or not at all.

    It is read even where it was just made, so that a first call and a second one give the same.
    """
    if not path.exists():
        made = make()
        with atomic_path(path) as temporary:
            write(made, temporary)
    return read(path)


def kept_json(path: Path, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """`kept` as JSON."""

    def read(file: Path) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(file.read_text())
        return found

    def write(made: dict[str, Any], to: Path) -> None:
        to.write_text(json.dumps(made, allow_nan=False))

    return kept(path, make, write, read)


def kept_table(path: Path, make: Callable[[], "pd.DataFrame"]) -> "pd.DataFrame":
    """`kept` as parquet, without the table's index."""
    import pandas as pd

    return kept(path, make, lambda table, to: table.to_parquet(to, index=False), pd.read_parquet)
