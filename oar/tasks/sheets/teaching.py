"""What the base model of the sheets is taught: the form and to repeat digits in the answer, but only some of the digits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from transformers import PreTrainedTokenizerFast

from oar.common.errors import ConfigError
from oar.common.seeding import derive_seed
from oar.config.checks import require
from oar.tasks.embedded.splits import TEACHING_STREAM
from oar.tasks.embedded.teaching import Teaching
from oar.tasks.problem import Problem
from oar.tasks.sheets.generator import CHECKSUM, EVERY, SHEETS, Sheet, demonstration, evaluation_set, training_problem
from oar.tasks.sheets.grading import digit_places
from oar.tasks.sheets.language import MARKER
from oar.tasks.sheets.tokenizer import build_tokenizer


@dataclass(frozen=True)
class SheetTeaching(Teaching):
    """The teaching of a sheet. `known`: probability that a demonstrated digit is the right one; else it is drawn from all.

    `sheet`: None where the problems are no sheets; there is nothing to teach then.
    """

    sheet: Sheet | None = None
    known: float = 0.25

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.known <= 1, "model.teach.known", "a probability", self.known)

    def lesson(self) -> "SheetLesson":
        """Fresh sheets. Raises ConfigError without one."""
        if self.sheet is None:
            raise ConfigError("model.teach.sheet must be the sheet of the data, but there is none: choose data=sheets.")
        return SheetLesson(self, self.sheet)


@dataclass(frozen=True)
class SheetLesson:
    """Demonstrations of one kind of sheet."""

    config: SheetTeaching
    sheet: Sheet

    def tokenizer(self) -> PreTrainedTokenizerFast:
        """The same for all sheets."""
        return build_tokenizer(self.config.max_position_embeddings)

    def demonstration(self, index: int) -> tuple[str, str]:
        """Question and completion."""
        seed = self.config.seed
        made = training_problem(self.sheet, TEACHING_STREAM, seed, index)
        rng = Random(derive_seed("demonstration", seed, index))
        return made.problem.question, demonstration(made, self.config.known, self.config.filler, rng)

    def tuning(self) -> Mapping[str, Sequence[Problem]]:
        """One set."""
        made = evaluation_set(self.sheet, "tuning", self.config.check_problems)
        return {SHEETS: [one.problem for one in made]}

    def is_good(self, problem: Problem, completion: str) -> bool:
        """Whether every key has a digit, and the answer is made of these digits; a checksum need not be the right one."""
        said = completion.split()
        places = digit_places(said)
        keys = problem.solution.split()[::2]
        if MARKER not in said or set(places) != set(keys):
            return False
        answer, counted = completion.rpartition(MARKER)[2].strip(), problem.columns[SHEETS]
        if counted["answer"] == CHECKSUM:
            return answer.isdigit()
        if counted["answer"] == EVERY:
            return answer == " ".join(f"{key} {said[places[key]]}" for key in keys)
        return answer == said[places[counted["asked"]]]
