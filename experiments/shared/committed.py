"""Paths of committed results, from whatever folder a program is started."""

from pathlib import Path

from oar.common.provenance import ROOT


def committed(path: str | Path) -> Path:
    """The path as it was typed where something is there, else in the repository: defaults are those of its root."""
    return Path(path) if Path(path).exists() else ROOT / path
