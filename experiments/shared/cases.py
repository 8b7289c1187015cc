"""Sizes of made-up models, and measured cases that are kept as JSON: an interrupted benchmark goes on."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.progress import Progress

from oar.common.cache import kept_json, kept_path
from oar.common.progress import stage
from oar.common.provenance import cpu_model, gpu_name, versions

Case = dict[str, Any]


@dataclass
class SizeConfig:
    """A made-up model and, by completion length, how many completions an update has."""

    architecture: dict[str, Any]
    lengths: dict[int, int]


class KeptCases:
    """What is measured already, in `folder`: an interrupted benchmark goes on. `code`: hash of the code that measures."""

    def __init__(self, folder: Path, progress: Progress, code: str) -> None:
        self.folder, self.progress, self.code = folder, progress, code
        self.kept = 0

    def case(self, name: str, made_of: Mapping[str, Any], measure: Callable[[], Case]) -> Case:
        """What was measured under this name by the same code on the same machine, else measured now and kept."""
        here = {"code": self.code, "torch": versions()["torch"], "machine": gpu_name() or cpu_model()}
        path = kept_path(self.folder / "cases", name, {**made_of, **here}, ".json")
        self.kept += path.exists()

        def made() -> Case:
            with stage(self.progress, name):
                return measure()

        return kept_json(path, made)


def told_size(size: str, found: SizeConfig) -> str:
    """A size in words."""
    of = found.architecture
    width = f"hidden {of['hidden_size']}, intermediate {of['intermediate_size']}, vocabulary {of['vocab_size']}"
    counts = ", ".join(f"{count} of {length}" for length, count in found.lengths.items() if count)
    return f"`{size}` is {of['num_hidden_layers']} layers, {width}; completions of an update: {counts}"
