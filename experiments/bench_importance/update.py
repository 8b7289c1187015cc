"""What credit costs in one update of a model: seconds, tokens forwarded, peak memory."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from experiments.shared.counted_tokens import counted_tokens
from experiments.shared.fresh_process import like_the_learner, turned
from experiments.shared.made_up import WARM_UP_LENGTH, made_up_batch, made_up_model
from experiments.shared.peak_memory import peak_memory
from oar.analysis.signals.examine import by_completion
from oar.common.clock import Clock
from oar.common.seeding import generator
from oar.config import TrainConfig
from oar.learner.credit import Credited
from oar.learner.distributed import ALONE
from oar.learner.update import LossBatch, accumulate_gradient
from oar.method.batch import CompletionBatch
from oar.method.credit import CreditAssigner
from oar.method.forward.logprobs import Scores, score_completions
from oar.method.gating import make_gate
from oar.method.importance import CreditInputs, ImportanceEstimator, PerturbationImportance
from oar.method.probes import AnswerMeanProbe, Probe

PILOT = 8  # counterfactuals of a completion that tell how long all of them take
Stages = Callable[[str], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class PlainImportance:
    """The naive OAR-P that exact, prefix-shared OAR-P is held against: whole masked copies, as many tokens in a forward."""

    max_tokens_per_forward: int

    @torch.no_grad()
    def __call__(self, inputs: CreditInputs) -> Tensor:
        """(B, T) in nats, under as_mean; logits are read at the answer only."""
        model, batch = inputs.model, inputs.batch
        rows_at_once = max(1, self.max_tokens_per_forward // batch.input_ids.shape[1])
        importance = torch.zeros(batch.reasoning_mask.shape, device=batch.input_ids.device)
        for row in range(len(batch)):
            start = int(batch.prompt_lengths[row])
            count, first = int(batch.reasoning_mask[row].sum()), int(batch.answer_mask[row].int().argmax())
            end = first + int(batch.answer_mask[row].sum())
            ids, predicting = batch.input_ids[row, : start + end], slice(start + first - 1, start + end - 1)

            def outcome(rows: Tensor, at: slice = predicting) -> Tensor:
                hidden = model.base_model(input_ids=rows, use_cache=False).last_hidden_state
                return model.get_output_embeddings()(hidden[:, at]).float().mean(dim=1).log_softmax(dim=-1)

            clean = outcome(ids[None])
            for tokens in torch.arange(count, device=ids.device).split(rows_at_once):
                copies = ids.repeat(len(tokens), 1)
                copies[torch.arange(len(tokens)), start + tokens] = batch.pad_id
                importance[row, tokens] = (clean.exp() * (clean - outcome(copies))).sum(dim=-1).clamp(min=0)
        return importance


@dataclass(frozen=True, slots=True)
class Update:
    """One update as the learner makes it on the policy: forward, credit, loss, backward. The optimizer is left out."""

    model: PreTrainedModel
    batch: CompletionBatch
    advantages: Tensor
    probe: Probe
    cfg: TrainConfig

    def run(self, estimator: ImportanceEstimator, clock: Stages) -> Credited:
        """Gradients are left in the parameters' `.grad`; `clock("importance")` surrounds the credit of each micro-batch."""
        data = LossBatch.of(self.batch, self.advantages)
        assigner = CreditAssigner(estimator, make_gate(**self.cfg.gating.options()), self.probe)
        self.model.zero_grad(set_to_none=True)

        def credit(rows: Tensor, scores: Scores) -> Credited:
            with clock("importance"):
                some = self.batch.rows(rows)
                given = assigner(self.model, some, scores, self.advantages[rows], seeds=rows.tolist())
            return Credited.of(rows, scores, given)

        _, credited = accumulate_gradient(
            self.model,
            None,
            data,
            torch.arange(len(self.batch), device=self.advantages.device),
            self.cfg.learner,
            temperature=self.cfg.rollout.temperature,
            max_completion_length=self.batch.completion_ids.shape[1],
            credit=credit,
        )
        return Credited.joined(credited, data.loss_mask.shape, ALONE, self.advantages.device)

    def seconds(self, estimator: ImportanceEstimator) -> tuple[float, float]:
        """Of the whole update, and of its credit alone."""
        clock = Clock(self.model.device)
        self.run(estimator, clock)
        found = clock.seconds()
        return found["total"], found.get("importance", 0.0)

    @torch.no_grad()
    def expected_seconds(self, estimator: ImportanceEstimator) -> float:
        """Of the counterfactuals of an estimator, to leave out what would take too long.

        Going by a few of them, evenly spaced; of the naive OAR-P by the forward of one row.
        """
        mask = self.batch.reasoning_mask
        if isinstance(estimator, PlainImportance):
            clock = Clock(self.model.device)
            self.model.base_model(input_ids=self.batch.input_ids[:1], use_cache=False)
            return clock.seconds()["total"] * int(mask.sum())
        if not isinstance(estimator, PerturbationImportance):
            return 0.0
        scores = score_completions(self.model, self.batch, temperature=self.cfg.rollout.temperature)
        inputs = CreditInputs(self.model, self.batch, self.probe, scores, range(len(self.batch)))
        counts = mask.sum(dim=1)
        some = mask & ((mask.cumsum(dim=1) - 1) % max(1, int(counts.max()) // PILOT) == 0)
        clock = Clock(self.model.device)
        replace(estimator, budget=None).measure(inputs, some)
        each = clock.seconds()["total"] / int(some.sum())
        return each * int((counts if estimator.budget is None else counts.clamp(max=estimator.budget)).sum())


def timed_rounds(
    update: Update, methods: Mapping[str, ImportanceEstimator], rounds: int, method_seconds: float
) -> dict[str, dict[str, list[float]]]:
    """By method the seconds of the update and of its credit, round by round; the methods take turns within a round.

    The first round warms up whoever gets a second: a method is left out of further rounds once it has had
    `method_seconds`, so all lists begin with the same round and may end earlier.
    """
    found: dict[str, dict[str, list[float]]] = {name: {"update": [], "credit": []} for name in methods}
    for at in range(rounds):
        for name in turned(list(methods), at):
            if sum(found[name]["update"]) < method_seconds:
                whole, credit = update.seconds(methods[name])
                found[name]["update"].append(whole)
                found[name]["credit"].append(credit)
    return found


@dataclass(frozen=True, slots=True)
class Synthetic:
    """A made-up case: a Qwen2 architecture with random weights, and completions of random tokens, all of one length.

    architecture: keyword arguments of Qwen2Config; length: completion tokens, made of reasoning, a marker of one token, an
    answer and EOS.
    """

    size: str
    architecture: dict[str, Any]
    dtype: str
    device: str
    length: int
    completions: int
    prompt_tokens: int
    answer_tokens: int
    seed: int
    cfg: TrainConfig

    def update(self, methods: Mapping[str, ImportanceEstimator]) -> Update:
        """The update of the case; before it one of short completions by every method, since the first call is slow."""
        # Every completion counts, half of them for and half against.
        advantages = torch.ones(self.completions, device=self.device)
        advantages[1::2] = -1.0
        model = made_up_model(self.architecture, self.dtype, self.device, self.seed)
        short = Update(model, self.batch(WARM_UP_LENGTH), advantages, AnswerMeanProbe(), self.cfg)
        for estimator in methods.values():
            short.run(estimator, Clock())
        short.model.zero_grad(set_to_none=True)
        return replace(short, batch=self.batch(self.length))

    def batch(self, length: int) -> CompletionBatch:
        """Random tokens."""
        return made_up_batch(
            self.completions,
            int(self.architecture["vocab_size"]),
            generator(self.seed, "batch"),
            prompt_tokens=self.prompt_tokens,
            reasoning_tokens=length - self.answer_tokens - 2,  # marker and EOS
            answer_tokens=self.answer_tokens,
            device=self.device,
        )


def measure_seconds(
    case: Synthetic, methods: Mapping[str, ImportanceEstimator], rounds: int, method_seconds: float, limit_s: float
) -> dict[str, Any]:
    """{"seconds": by method as `timed_rounds` gives them, "skipped": by method the seconds an update was thought to take}.

    Skipped is what is expected to take longer than `limit_s`.
    """
    like_the_learner(case.cfg.learner.threads)
    update = case.update(methods)
    guess = {name: update.expected_seconds(estimator) for name, estimator in methods.items()}
    skipped = {name: seconds for name, seconds in guess.items() if seconds > limit_s}
    taken = {name: estimator for name, estimator in methods.items() if name not in skipped}
    return {"seconds": timed_rounds(update, taken, rounds, method_seconds), "skipped": skipped}


def measure_memory(case: Synthetic, estimator: ImportanceEstimator) -> dict[str, Any]:
    """Tokens forwarded, importance and weights of one update, and the peaks of what tensors hold in it, in bytes.

    update_peak: above what the model itself takes (activations and gradients; no optimizer state); credit_peak: of the
    estimator above what is held when it is called.
    """
    like_the_learner(case.cfg.learner.threads)
    with peak_memory(case.device) as mark:
        update = case.update({"": estimator})
        peaks: list[int] = []
        credit_peaks: list[int] = [0]

        @contextmanager
        def watch(_: str) -> Iterator[None]:
            held, peak = mark()
            peaks.append(peak)
            yield
            peaks.append(mark()[1])
            credit_peaks.append(peaks[-1] - held)

        with counted_tokens(update.model) as count:
            before, _ = mark()
            data = update.run(estimator, watch)
            peaks.append(mark()[1])
    mask = update.batch.reasoning_mask
    return {
        "tokens": count.forward,
        "update_peak": max(peaks) - before,
        "credit_peak": max(credit_peaks),
        "importance": listed(data.token_importance, mask),
        "weights": listed(data.token_weights, mask),
    }


def listed(values: Tensor, masks: Tensor) -> list[list[float]]:
    """(B, T) as B lists of what is under the mask, for JSON."""
    return [row.tolist() for row in by_completion(values, masks)]
