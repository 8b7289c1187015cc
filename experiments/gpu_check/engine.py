"""Rollouts without an engine: a copy of the learner's own model draws them, in this process, and weights reach it by a copy.

A random model never answers, so each completion's end is put behind what was drawn: `#### answer`, right for every other one.
Nor does it write sheets: these are written in the right form, with digits that are right throughout or drawn. Logprobs are the
copy's own of every token, so the learner's parity check holds sampler against learner as in a run. Whoever asks the same again
gets the same completions, so that two learners have one draw.
"""

from collections.abc import Sequence
from random import Random
from typing import Any

import torch
from transformers import PreTrainedModel

from oar.common.errors import EngineError
from oar.config import TrainConfig, build
from oar.config.evaluation import Sampling
from oar.model.parameters import Gather, full_weights
from oar.rollout.client.vllm import UNKNOWN_VERSION, Engine, EngineClient, ModelInfo
from oar.rollout.types import Rollout
from oar.tasks.data.sources import ProblemSource, SheetsSource
from oar.tasks.problem import Problem
from oar.tasks.sheets.generator import SHEETS, SheetProblem, demonstration
from oar.tasks.sheets.tokenizer import build_tokenizer as sheets_tokenizer
from oar.tasks.task import Task
from oar.tasks.words import build_tokenizer


def task_of(cfg: TrainConfig) -> Task:
    """The embedded task of the configuration's problems."""
    tokenizer = sheets_tokenizer() if cfg.data.name == SHEETS else build_tokenizer()
    return Task.named(tokenizer, cfg.model.marker, cfg.template)


class OwnSampling(Engine):
    """Draws from `model`, or where it is None random words, whose logprobs nobody knows. It is its own weight sync.

    reasoning: least and largest number of drawn tokens. The last completion of a group is cut off before it answers; but
    where there are three groups or more, all of the first one's are right, so that it has no advantage.
    """

    servers: tuple[EngineClient, ...] = ()

    def __init__(self, cfg: TrainConfig, reasoning: tuple[int, int], model: PreTrainedModel | None = None) -> None:
        self.model, self.seed, self.reasoning, self.task = model, cfg.seed, reasoning, task_of(cfg)
        self.source: ProblemSource = build("data.source", cfg.data.source, cfg.allow_targets)
        self.version = UNKNOWN_VERSION
        self._problems: dict[tuple[int, ...], Problem] = {}  # by prompt
        self._answers: dict[tuple[Any, ...], list[list[Rollout]]] = {}  # by seed, version, number and prompts
        self._words = len(self.task.tokenizer)
        self._special = sorted({*self.task.tokenizer.all_special_ids, *self.task.encode_marker(None)})

    def health(self) -> bool:
        """Always."""
        return True

    def model_info(self) -> ModelInfo:
        """Of this process."""
        return ModelInfo("in this process", 2**20)

    def weight_version(self) -> int:
        """Of the weights it was given last."""
        return self.version

    def push(self, model: PreTrainedModel, version: int, gather: Gather = full_weights) -> None:
        """Hold the weights of `model` under `version`."""
        if self.model is not None:
            weights = {name: weight.clone() for name, weight in gather(model, self.model.dtype)}
            missing, unexpected = self.model.load_state_dict(weights, strict=False)
            tied = {"lm_head.weight"} if self.model.config.tie_word_embeddings else set()
            if unexpected or set(missing) - tied:
                raise EngineError(f"the weights must be those of the model, but {[*missing, *unexpected]} are not.")
        self.version = version

    def close(self) -> None:
        """Nothing is open."""

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling | Sequence[Sampling],
        *,
        seed: int,
        expected_version: int,
    ) -> list[list[Rollout]]:
        """`sampling.n` completions of each prompt of the step that draws with weights `expected_version`.

        Of a prompt that goes on in a completion, as for continuations and trees, each is an ending for the same problem.
        """
        samplings = [sampling] * len(prompts) if isinstance(sampling, Sampling) else sampling
        # VinePPO and SPO draw the same number of continuations, of other states.
        asked = (seed, expected_version, samplings[0].n, tuple(map(tuple, prompts)))
        if asked not in self._answers:
            self._check_version(expected_version)
            streamed, rng = self.source.problems(self.seed, expected_version, len(prompts)), Random(seed)
            problems = [self._problem(tuple(prompt), one) for prompt, one in zip(prompts, streamed, strict=True)]
            self._answers[asked] = [
                self._group(problem, tuple(prompt), one, rng, all_right=index == 0 and len(prompts) >= 3)
                for index, (problem, prompt, one) in enumerate(zip(problems, prompts, samplings, strict=True))
            ]
        return self._answers[asked]

    def _problem(self, prompt: tuple[int, ...], streamed: Problem) -> Problem:
        """Whose completion goes on here, or of a prompt that is new the one that the stream has in its place."""
        begun = next((known for known in self._problems if prompt[: len(known)] == known), prompt)
        return self._problems.setdefault(begun, streamed)

    def _group(
        self, problem: Problem, prompt: tuple[int, ...], sampling: Sampling, rng: Random, all_right: bool
    ) -> list[Rollout]:
        drawn, tokenizer, rollouts = self._drawn(prompt, sampling, rng), self.task.tokenizer, []
        for number in range(sampling.n):
            right = all_right or number % 2 == 0
            completion, reason = drawn[number][: rng.randint(*self.reasoning)], "length"
            answer = problem.answer if right else f"{int(problem.answer) + 1}"
            if isinstance(self.source, SheetsSource):
                sheet = SheetProblem(problem, self.source.sheet)
                said, _, answer = demonstration(sheet, float(right), 0, rng).partition(f" {self.task.marker} ")
                completion = tokenizer.encode(said, add_special_tokens=False)
            if all_right or number < sampling.n - 1:
                ending = tokenizer.encode(f"{self.task.marker} {answer}", add_special_tokens=False)
                completion, reason = [*completion, *ending, int(tokenizer.eos_token_id)], "stop"
            if len(completion) > sampling.max_new_tokens:
                completion, reason = completion[: sampling.max_new_tokens], "length"
            logprobs = self._logprobs(prompt, completion, sampling.temperature)
            rollouts.append(Rollout(prompt, tuple(completion), tuple(logprobs), self.version, reason))
        return rollouts

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
