"""The groups model, data and benchmark: what is trained, on what, and what it is measured by."""

import re
from dataclasses import dataclass, field
from typing import Any

from oar.common.errors import ConfigError
from oar.config.checks import one_of, require

FIELDS = ("id", "question", "answer", "solution", "level", "subject")
ANSWER_FORMS = ("integer", "text")


@dataclass
class LoraConfig:
    """An adapter that is trained in place of the weights (oar/model/lora.py).

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
    """The policy's starting point: a Hugging Face folder, or one that is taught on this machine first.

    `template`: the prompt that the model is used to, taken where none is chosen; None: no template.
    """

    name: str
    path: str | None
    teach: Any
    teach_dir: str | None
    dtype: str
    marker: str
    lora: LoraConfig | None = None
    template: str | None = None

    def __post_init__(self) -> None:
        expected = f"a folder (conf/model/{self.name}.yaml has the command that brings it) where model.teach is null"
        require(self.path is not None or self.teach is not None, "model.path", expected, None)
        require(
            self.teach is None or bool(self.teach_dir), "model.teach_dir", "a folder for taught models", self.teach_dir
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
class DatasetConfig:
    """A published data set and how its rows are read; the values, with their reasons, stand in conf/benchmark and conf/data.

    `dataset`, `config`, `split`, `revision` name it on the hub (`dataset` None: there is only a local file; `revision`
    None: the newest, and the record of a run says which that was), `file` in a folder of local copies (no suffix).
    `columns` names for each field of a problem the columns that may hold it; the first that is there wins.

    The final answer is what follows the last `answer_marker` in the answer column, where its rows have one (what precedes
    is the solution), else that column, or with `answer_boxed` and no such column the last `\\boxed` of the solution.
    `answer_remove` are texts that are no part of it. `answer_form` integer: "025", 142.0 and "1,000" become 25, 142 and
    1000, and anything else is an error; text: it stays as it is. Up to `max_unanswered` problems without an answer are
    left out. `solution_remove` is a regular expression; `question_replace` mends known faults. `shortest`: only so many
    problems, those with the shortest questions (before levels are chosen); None: all.
    """

    dataset: str | None
    columns: dict[str, list[str]]
    answer_form: str
    config: str | None = None
    split: str = "train"
    revision: str | None = None
    file: str | None = None
    answer_marker: str | None = None
    answer_boxed: bool = False
    answer_remove: list[str] = field(default_factory=list)
    solution_remove: str | None = None
    question_replace: dict[str, str] = field(default_factory=dict)
    max_unanswered: int = 0
    shortest: int | None = None

    def __post_init__(self) -> None:
        unknown = [name for name in self.columns if name not in FIELDS]
        if unknown or "question" not in self.columns:
            named = ", ".join(self.columns)
            raise ConfigError(f"columns must name question, and nothing but {', '.join(FIELDS)}, but names {named}.")
        if not (self.columns.get("answer") or (self.answer_boxed and self.columns.get("solution"))):
            raise ConfigError("columns must name answer, or solution where answer_boxed is true.")
        if self.answer_form not in ANSWER_FORMS:
            raise ConfigError(f"answer_form must be one of {', '.join(ANSWER_FORMS)}, but is {self.answer_form!r}.")
        if self.max_unanswered < 0:
            raise ConfigError(f"max_unanswered must be 0 or more, but is {self.max_unanswered}.")
        try:
            re.compile(self.solution_remove or "")
        except re.error as error:
            raise ConfigError(
                f"solution_remove must be a regular expression, but is {self.solution_remove!r} ({error})."
            ) from error
        require(self.shortest is None or self.shortest >= 1, "shortest", "1 or more, or null for all", self.shortest)


@dataclass
class BenchmarkConfig:
    """Which problems are evaluated on: published sets (`sources` by name), embedded tiers or tasks of reasoning-gym.

    `path`: local copies instead of the hub, as one file, a folder, or a file by set. `options`: of tasks of reasoning-gym, of
    sheets or of problems in parts by name; None where the sets are no such tasks.
    """

    name: str
    sets: list[str]
    sources: dict[str, DatasetConfig] = field(default_factory=dict)
    path: Any = None
    options: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        require(len(set(self.sets)) == len(self.sets) > 0, "benchmark.sets", "a list without repetition", self.sets)
        by_set = isinstance(self.path, dict) and set(self.path) <= set(self.sets)
        fits = self.path is None or isinstance(self.path, str) or by_set
        require(fits, "benchmark.path", f"a file, a folder or a file by set ({', '.join(self.sets)})", self.path)
