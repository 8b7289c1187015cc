"""What a base model of procedural problems is taught, by characters: to write the answer, and again behind the marker."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerFast

from oar.common.errors import ConfigError
from oar.common.seeding import derive_seed
from oar.method.segments import HASH, extract_answer
from oar.tasks.data.procedural import check_tasks, data_set, held_out
from oar.tasks.embedded.splits import TEACHING_STREAM
from oar.tasks.embedded.teaching import Teaching
from oar.tasks.embedded.tokenizer import character_tokenizer
from oar.tasks.problem import Problem


@dataclass(frozen=True)
class ProceduralTeaching(Teaching):
    """The teaching of tasks of reasoning-gym, `options` as of their source; good is the answer, to the letter.

    Both are None where the problems are no such ones; there is nothing to teach then.
    """

    tasks: Sequence[str] | None = None
    options: Mapping[str, Mapping[str, Any]] | None = None

    def lesson(self) -> "ProceduralLesson":
        """Fresh problems. Raises ConfigError without tasks, and for those that cannot be used."""
        if not self.tasks:
            raise ConfigError(
                "model.teach.tasks must be the tasks of the data, but there are none: choose data=reasoning_gym."
            )
        check_tasks("model.teach.tasks", self.tasks, self.options or {})
        return ProceduralLesson(self, self.tasks, self.options or {})


class ProceduralLesson:
    """Demonstrations of all tasks, which take turns, from a seed that no run has; a question may be asked elsewhere too."""

    def __init__(
        self, config: ProceduralTeaching, tasks: Sequence[str], options: Mapping[str, Mapping[str, Any]]
    ) -> None:
        self.config, self.tasks, self.options = config, tasks, options
        # Some data sets read a file when they are made: one for all demonstrations of a task, not one for each.
        size = config.max_steps * config.batch_size
        seed = derive_seed(TEACHING_STREAM, config.seed) % 2**31
        self.data_sets = {task: data_set(task, options.get(task, {}), seed, size) for task in tasks}

    def tokenizer(self) -> PreTrainedTokenizerFast:
        """A token for each printable character of ASCII, one for a line break, one for the marker."""
        return character_tokenizer([HASH], self.config.max_position_embeddings)

    def demonstration(self, index: int) -> tuple[str, str]:
        """Question, and its answer twice. Raises ConfigError for a task that shows none."""
        task = self.tasks[index % len(self.tasks)]
        entry = self.data_sets[task][index]
        if entry["answer"] is None:
            raise ConfigError(f"{task} shows no answer that could be taught: choose other data.source.tasks.")
        return entry["question"].strip(), f"{entry['answer']} {HASH} {entry['answer']}"

    def tuning(self) -> Mapping[str, Sequence[Problem]]:
        """By task."""
        count = self.config.check_problems
        return {task: held_out(task, self.options, "tuning", count).problems for task in self.tasks}

    def is_good(self, problem: Problem, completion: str) -> bool:
        """Whether the answer is right."""
        return extract_answer(completion, HASH) == problem.answer
