"""What the base model of the word problems is taught: to half solve them, one by one or several in a prompt."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from transformers import PreTrainedTokenizerFast

from oar.common.errors import ConfigError
from oar.common.seeding import derive_seed
from oar.tasks.embedded.splits import TEACHING_STREAM
from oar.tasks.embedded.teaching import Teaching
from oar.tasks.problem import Problem
from oar.tasks.words import language, parts
from oar.tasks.words.generator import demonstration, evaluation_set, training_problem
from oar.tasks.words.parts import PARTS, Parts
from oar.tasks.words.tiers import make_tiers, tier_named
from oar.tasks.words.tokenizer import build_tokenizer


@dataclass(frozen=True)
class TeachConfig(Teaching):
    """The teaching of the word problems; good is a right answer."""

    def lesson(self) -> "WordsLesson":
        """Fresh word problems of all tiers."""
        return WordsLesson(self)


@dataclass(frozen=True)
class WordsLesson:
    """Demonstrations of all tiers, which take turns."""

    config: TeachConfig

    def tokenizer(self) -> PreTrainedTokenizerFast:
        """That of the word problems."""
        return build_tokenizer(self.config.max_position_embeddings)

    def demonstration(self, index: int) -> tuple[str, str]:
        """Question and chain of thought."""
        seed = self.config.seed
        word_problem = training_problem(make_tiers(self.config.filler), TEACHING_STREAM, seed, index)
        text = demonstration(word_problem, Random(derive_seed("demonstration", seed, index)))
        return word_problem.problem.question, text

    def tuning(self) -> Mapping[str, Sequence[Problem]]:
        """By tier."""
        count = self.config.check_problems
        return {
            tier.name: [one.problem for one in evaluation_set(tier, "tuning", count)]
            for tier in make_tiers(self.config.filler)
        }

    def is_good(self, problem: Problem, completion: str) -> bool:
        """Whether the answer is right."""
        _, marker, answer = completion.rpartition(language.MARKER)
        return bool(marker) and answer.strip() == problem.answer


@dataclass(frozen=True)
class PartsTeaching(TeachConfig):
    """The teaching of word problems in parts; good is that all answers are right.

    `parts`: None where the problems are no such ones; there is nothing to teach then.
    """

    parts: Parts | None = None

    def lesson(self) -> "PartsLesson":
        """Fresh problems. Raises ConfigError without a kind of them, or where people's spelling has no word for its tokens."""
        if self.parts is None or tier_named(self.parts.tier).english:
            raise ConfigError(
                "model.teach.parts must be the parts of the data, of one of the tiers words1 to words5, but is "
                f"{self.parts}: choose data=parts data.source.parts.tier=words1."
            )
        return PartsLesson(self, self.parts)


@dataclass(frozen=True)
class PartsLesson(WordsLesson):
    """Demonstrations of one kind."""

    kind: Parts

    def demonstration(self, index: int) -> tuple[str, str]:
        """Questions, and a chain of thought for each."""
        made = parts.training_problem(self.kind, TEACHING_STREAM, self.config.seed, index)
        rng = Random(derive_seed("demonstration", self.config.seed, index))
        return made.problem.question, parts.demonstration(made, rng)

    def tuning(self) -> Mapping[str, Sequence[Problem]]:
        """One set."""
        made = parts.evaluation_set(self.kind, "tuning", self.config.check_problems)
        return {PARTS: [one.problem for one in made]}
