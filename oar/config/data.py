"""The groups model, data and benchmark: what is trained, on what, and what it is measured by."""

from dataclasses import dataclass, field
from typing import Any

from oar.config.checks import one_of, require
from oar.tasks.records import DatasetConfig


@dataclass
class LoraConfig:
    """An adapter that is trained in place of the weights (oar/lora.py).

    There is no dropout: one forward scores, credits and learns, and it has to be the policy that the engine samples from.
    """

    r: int
    alpha: int
    targets: list[str]

    def __post_init__(self) -> None:
        require(self.r >= 1, "model.lora.r", "1 or more", self.r)
        require(self.alpha >= 1, "model.lora.alpha", "1 or more", self.alpha)
        require(len(self.targets) > 0, "model.lora.targets", "names of layers", self.targets)


@dataclass
class ModelConfig:
    """The policy's starting point: a Hugging Face folder, or one that is taught on this machine first."""

    name: str
    path: str | None
    teach: Any
    teach_dir: str | None
    dtype: str
    marker: str
    lora: LoraConfig | None = None

    def __post_init__(self) -> None:
        require(
            self.path is not None or self.teach is not None, "model.path", "a folder where model.teach is null", None
        )
        one_of("model.dtype", self.dtype, ("float32", "bfloat16"))
        require(bool(self.marker), "model.marker", "the text that announces an answer", self.marker)


@dataclass
class DataConfig:
    """Where training problems come from; `source` names a class (`oar.config.build`).

    `allow_contaminated` names the benchmarks whose problems may be among them.
    """

    name: str
    source: Any
    allow_contaminated: list[str] = field(default_factory=list)


@dataclass
class BenchmarkConfig:
    """Which problems are evaluated on: published sets (`sources` by name) or embedded tiers.

    `path`: local copies instead of the hub, as one file, a folder, or a file by set.
    """

    name: str
    sets: list[str]
    sources: dict[str, DatasetConfig] = field(default_factory=dict)
    path: Any = None

    def __post_init__(self) -> None:
        require(len(set(self.sets)) == len(self.sets) > 0, "benchmark.sets", "a list without repetition", self.sets)
        by_set = isinstance(self.path, dict) and set(self.path) <= set(self.sets)
        fits = self.path is None or isinstance(self.path, str) or by_set
        require(fits, "benchmark.path", f"a file, a folder or a file by set ({', '.join(self.sets)})", self.path)
