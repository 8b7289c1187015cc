"""Rollouts without an engine: a copy of the learner's own model draws them, in this process, and weights reach it by a copy.

A random model never answers, so each completion's end is put behind what was drawn: `#### answer`, right for every other one.
Logprobs are the copy's own of every token, so the learner's parity check holds sampler against learner as in a run.
"""

from collections.abc import Sequence
from random import Random

import torch
from transformers import PreTrainedModel

from oar.common.errors import EngineError
from oar.config.evaluation import Sampling
from oar.model.parameters import Gather, full_weights
from oar.rollout.client.vllm import UNKNOWN_VERSION, Engine, EngineClient, ModelInfo
from oar.rollout.types import Rollout
from oar.tasks.data.sources import ProblemSource
from oar.tasks.problem import Problem
from oar.tasks.task import Task


class OwnSampling(Engine):
    """Draws from `model`, or where it is None random words, whose logprobs nobody knows.

    reasoning: least and largest number of drawn tokens. The last completion of a group is cut off before it answers; but
    where there are three groups or more, all of the first one's are right, so that it has no advantage.
    """

    def __init__(
        self, model: PreTrainedModel | None, task: Task, source: ProblemSource, seed: int, reasoning: tuple[int, int]
    ) -> None:
        self.model, self.task, self.source, self.seed, self.reasoning = model, task, source, seed, reasoning
        self.version = UNKNOWN_VERSION
        self._words = len(task.tokenizer)
        self._special = sorted({*task.tokenizer.all_special_ids, *task.encode_marker(None)})

    @property
    def servers(self) -> tuple[EngineClient, ...]:
        """None."""
        return ()

    def health(self) -> bool:
        """Always."""
        return True

    def model_info(self) -> ModelInfo:
        """Of this process."""
        return ModelInfo("in this process", 2**20)

    def weight_version(self) -> int:
        """Of the weights it was given last."""
        return self.version

    def take(self, model: PreTrainedModel, version: int, gather: Gather) -> None:
        """Hold the weights of `model`."""
        if self.model is not None:
            weights = {name: weight.clone() for name, weight in gather(model, self.model.dtype)}
            missing, unexpected = self.model.load_state_dict(weights, strict=False)
            tied = {"lm_head.weight"} if self.model.config.tie_word_embeddings else set()
            if unexpected or set(missing) - tied:
                raise EngineError(f"the weights must be those of the model, but {[*missing, *unexpected]} are not.")
        self.version = version

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, *, seed: int, expected_version: int
    ) -> list[list[Rollout]]:
        """`sampling.n` completions of each prompt of the step that draws with weights `expected_version`."""
        self._check_version(expected_version)
        problems = self.source.problems(self.seed, expected_version, len(prompts))
        rng = Random(seed)
        return [
            self._group(problem, tuple(prompt), sampling, rng, all_right=index == 0 and len(prompts) >= 3)
            for index, (problem, prompt) in enumerate(zip(problems, prompts, strict=True))
        ]

    def _group(
        self, problem: Problem, prompt: tuple[int, ...], sampling: Sampling, rng: Random, all_right: bool
    ) -> list[Rollout]:
        drawn = self._drawn(prompt, sampling, rng)
        rollouts = []
        for number in range(sampling.n):
            reasoning = drawn[number][: rng.randint(*self.reasoning)]
            answer = problem.answer if all_right or number % 2 == 0 else f"{int(problem.answer) + 1}"
            answers = all_right or number < sampling.n - 1
            completion = [*reasoning, *self._ending(answer)] if answers else reasoning
            logprobs = self._logprobs(prompt, completion, sampling.temperature)
            reason = "stop" if answers else "length"
            rollouts.append(Rollout(prompt, tuple(completion), tuple(logprobs), self.version, reason))
        return rollouts

    def _ending(self, answer: str) -> list[int]:
        tokenizer = self.task.tokenizer
        return [
            *tokenizer.encode(f"{self.task.marker} {answer}", add_special_tokens=False),
            int(tokenizer.eos_token_id),
        ]

    @torch.no_grad()
    def _drawn(self, prompt: tuple[int, ...], sampling: Sampling, rng: Random) -> list[list[int]]:
        """As many tokens for each completion as it can need, none of which ends it."""
        most = self.reasoning[1]
        if self.model is None:
            words = [token for token in range(self._words) if token not in self._special]
            return [rng.choices(words, k=most) for _ in range(sampling.n)]
        device = self.model.device
        generator = torch.Generator().manual_seed(rng.getrandbits(62))
        ids = torch.tensor(prompt, device=device).repeat(sampling.n, 1)
        for _ in range(most):
            logits = self.model(input_ids=ids, use_cache=False).logits[:, -1, : self._words].float()
            logits[:, self._special] = -torch.inf
            chosen = (logits / sampling.temperature).softmax(dim=-1).cpu().multinomial(1, generator=generator)
            ids = torch.cat([ids, chosen.to(device)], dim=1)
        return [list(map(int, row)) for row in ids[:, len(prompt) :].tolist()]

    @torch.no_grad()
    def _logprobs(self, prompt: tuple[int, ...], completion: list[int], temperature: float) -> list[float]:
        """Of the tokens, by the whole distribution."""
        if self.model is None:
            return [-1.0] * len(completion)
        ids = torch.tensor([*prompt, *completion], device=self.model.device)
        logits = self.model(input_ids=ids[None], use_cache=False).logits[0, len(prompt) - 1 : -1].float() / temperature
        found: list[float] = logits.log_softmax(dim=-1).gather(1, ids[len(prompt) :, None])[:, 0].tolist()
        return found


class Remembering(Engine):
    """Gives whoever asks the same again the same completions, so that two devices learn from one draw."""

    def __init__(self, engine: OwnSampling) -> None:
        self._engine = engine
        self._drawn: dict[tuple[int, int, int], list[list[Rollout]]] = {}

    @property
    def servers(self) -> tuple[EngineClient, ...]:
        """None."""
        return ()

    def health(self) -> bool:
        """Always."""
        return True

    def model_info(self) -> ModelInfo:
        """Of the engine."""
        return self._engine.model_info()

    def weight_version(self) -> int:
        """Of the engine."""
        return self._engine.weight_version()

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, *, seed: int, expected_version: int
    ) -> list[list[Rollout]]:
        """As the engine's."""
        key = (seed, expected_version, sampling.n)
        if key not in self._drawn:
            self._engine.version = expected_version
            self._drawn[key] = self._engine.generate(prompts, sampling, seed=seed, expected_version=expected_version)
        return self._drawn[key]


class Handed:
    """A weight sync that hands the weights to an engine of this process."""

    def __init__(self, engine: OwnSampling | None = None) -> None:
        self._engine = engine

    def push(self, model: PreTrainedModel, version: int, gather: Gather = full_weights) -> None:
        """Make it hold `model`'s weights under `version`; without an engine nothing is copied."""
        if self._engine is not None:
            self._engine.take(model, version, gather)

    def close(self) -> None:
        """Nothing is open."""
