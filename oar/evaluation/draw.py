"""From problems to completions: by token ids from our engine, or by text from any server."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from transformers import PreTrainedTokenizerBase

from oar.common.seeding import derive_seed
from oar.config.evaluation import Sampling
from oar.rollout.client.openai import OpenAIClient
from oar.rollout.client.vllm import Engine
from oar.rollout.types import Rollout
from oar.tasks.problem import Problem


@dataclass(frozen=True, slots=True)
class Completion:
    """What is graded. `tokens` counts the EOS where the engine gives token ids, and not where only text is known."""

    prompt: str
    text: str
    tokens: int
    finish_reason: str


@dataclass(frozen=True, slots=True)
class Asked:
    """The problems of one set, and how they are to be drawn."""

    problems: Sequence[Problem]
    sampling: Sampling
    seed: int

    def seeds(self) -> list[int]:
        """One of each problem; those of `EngineClient.generate` for as many prompts."""
        return [derive_seed(self.seed, index) for index in range(len(self.problems))]


class Source(Protocol):
    """The completions of each problem as soon as they are there, with its position."""

    def __call__(
        self, problems: Sequence[Problem], samplings: Sequence[Sampling], *, seeds: Sequence[int]
    ) -> Iterator[tuple[int, list[Completion]]]:
        """`samplings`, `seeds`: one for each problem."""


class Prompts(Protocol):
    """What a source needs of a task; `oar.tasks.task.Task` has it."""

    def render(self, problem: Problem) -> str:
        """The prompt as text."""

    def encode_prompt(self, problem: Problem) -> list[int]:
        """The prompt's token ids."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, special tokens left out."""


@dataclass(frozen=True, slots=True)
class TokenSource:
    """Token ids in, token ids out; the engine must hold the weights of `version` from the first prompt to the last."""

    client: Engine
    task: Prompts
    version: int

    def __call__(
        self, problems: Sequence[Problem], samplings: Sequence[Sampling], *, seeds: Sequence[int]
    ) -> Iterator[tuple[int, list[Completion]]]:
        """Raises what `EngineClient.generate` raises."""
        prompts = [self.task.encode_prompt(problem) for problem in problems]
        stream = self.client.stream(prompts, samplings, seeds=seeds, expected_version=self.version, logprobs=False)
        for index, rollouts in stream:
            prompt = self.task.render(problems[index])
            yield index, [self._completion(prompt, rollout) for rollout in rollouts]

    def _completion(self, prompt: str, rollout: Rollout) -> Completion:
        text = self.task.decode(rollout.completion_ids)
        return Completion(prompt, text, len(rollout.completion_ids), rollout.finish_reason)


@dataclass(frozen=True, slots=True)
class TextSource:
    """Text in, text out: `render` gives the prompt, the server has a tokenizer of its own, ours counts tokens."""

    client: OpenAIClient
    render: Callable[[Problem], str]
    tokenizer: PreTrainedTokenizerBase

    def __call__(
        self, problems: Sequence[Problem], samplings: Sequence[Sampling], *, seeds: Sequence[int]
    ) -> Iterator[tuple[int, list[Completion]]]:
        """Raises EngineError for an answer that is not what it must be."""
        prompts = [self.render(problem) for problem in problems]
        for index, completions in self.client.stream(prompts, samplings, seeds=seeds):
            yield (
                index,
                [Completion(prompts[index], one.text, self._count(one.text), one.finish_reason) for one in completions],
            )

    def _count(self, text: str) -> int:
        return len(self.tokenizer.encode(text, add_special_tokens=False))


def draw(source: Source, asked: Sequence[Asked]) -> list[list[list[Completion]]]:
    """The completions of each problem of each set, in the order given.

    All sets are asked for at once: an engine needs hardly longer for a step of many sequences than for one of few, and in a set
    of its own a few long completions go on alone. Every problem draws from a seed of its own, whatever it is drawn beside.
    """
    problems = [problem for one in asked for problem in one.problems]
    samplings = [one.sampling for one in asked for _ in one.problems]
    drawn = dict(source(problems, samplings, seeds=[seed for one in asked for seed in one.seeds()]))
    positions = iter(range(len(problems)))
    return [[drawn[next(positions)] for _ in one.problems] for one in asked]
