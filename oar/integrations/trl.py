"""OAR inside TRL: `OARGRPOTrainer` is TRL's GRPOTrainer whose tokens carry their share of the advantage (docs/TRL.md).

TRL draws, rewards, computes the loss and steps. When a batch of completions is there, its credit is computed once, and the loss
is given token advantages (B, T) in place of advantages (B,), which TRL's loss takes as they are.
"""

import copy
import inspect
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from oar.common.clock import Clock
from oar.common.errors import ConfigError, DataError, MissingPackageError
from oar.common.seeding import derive_seed
from oar.integrations.columns import in_context, shown_column, told_problems
from oar.learner.probe import probe_of
from oar.method.batch import CompletionBatch, collate
from oar.method.credit import CreditAssigner
from oar.method.forward.logprobs import Scores, score_completions
from oar.method.gating import make_gate, weight_metrics
from oar.method.importance import (
    CreditInputs,
    GradientImportance,
    PositionImportance,
    RandomImportance,
    UniformImportance,
    gives,
    needs_batch,
)
from oar.method.importance.base import context_of
from oar.model.load import load_scorer
from oar.tasks.task import Task

try:
    from accelerate.utils import is_peft_model
    from trl import GRPOTrainer

    from oar.integrations.trl_config import OARGRPOConfig, refuse_unsupported
except ImportError as error:
    raise MissingPackageError(
        f"oar.integrations.trl needs TRL, but there is none ({error}): pip install trl==1.16.0."
    ) from error

if not all(hasattr(GRPOTrainer, hook) for hook in ("_generate_and_score_completions", "_calculate_rewards")):
    # Without the hooks below every run would be plain GRPO, and nobody would notice.
    raise MissingPackageError("oar.integrations.trl does not fit this version of TRL: pip install trl==1.16.0.")

UNSCORED = (UniformImportance, RandomImportance, PositionImportance)  # they look at nothing that a forward says
MAX_LOGPROB_DIFF = {True: 1e-3, False: 0.05}  # nats, mean; float32 or not: the bounds of conf/sync and of conf/profile


class OARGRPOTrainer(GRPOTrainer):
    """Takes what TRL's GRPOTrainer takes, with an OARGRPOConfig as `args`.

    Every batch of completions that is trained on gets token advantages, seeded by `args.seed`; evaluation is TRL's own. Metrics
    `weights/*`, `probe/fallback_share` and `seconds/credit` go where TRL's go. Raises ConfigError for what is not supported.
    """

    args: OARGRPOConfig
    model: PreTrainedModel

    def __init__(self, *positional: Any, **named: Any) -> None:
        given = inspect.signature(GRPOTrainer.__init__).bind(self, *positional, **named).arguments
        refuse_unsupported(given)
        super().__init__(*positional, **named)
        if self._is_vlm:
            raise ConfigError(
                "processing_class must be a tokenizer, but is of a model that sees images: train one of text."
            )
        self.task = Task(self._tokenizer, self.args.marker)
        self.estimator = self.args.make_estimator()
        if needs_batch(self.estimator) and self.accelerator.num_processes > 1:
            raise ConfigError(
                f"A method that compares completions must run in one process, which has them all, but {self.args.method} "
                f"would run in {self.accelerator.num_processes}: choose another method or start one process."
            )
        if self.args.gating_settings().threshold == "released_drift" and self.accelerator.num_processes > 1:
            raise ConfigError(
                "gating='released_drift' must run in one process, as its level goes from each completion to the next, but would "
                f"run in {self.accelerator.num_processes}: choose another gating or start one process."
            )
        # Who has a privileged look is the model as it is before training.
        asked = context_of(self.estimator) is not None
        self.teacher = copy.deepcopy(self._bare_model()).eval().requires_grad_(False) if asked else None
        dtype = str(self.model.dtype).removeprefix("torch.")
        self.scorer = load_scorer(self.args.probe_path, self._tokenizer, dtype)
        self._forward_is_proven = False

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        if self.model.training:  # the completions of an evaluation are drawn for their rewards
            clock = Clock(self.model.device)
            with clock("credit"):
                batch, advantages = self.completion_batch(output, inputs), output["advantages"]
                weights, token_advantages = self.token_credit(batch, advantages, output)
                output["advantages"] = advantages[:, None].repeat(1, output["completion_ids"].shape[1])
                output["advantages"][:, : weights.shape[1]] = token_advantages
            self._note(batch, advantages, weights, clock.seconds()["credit"])
        return output

    def _calculate_rewards(self, *positional: Any, **named: Any) -> Tensor:
        """By function, as TRL has them; the sum (B,) of all processes is kept for the credit, NaN where no function gave any."""
        found: Tensor = super()._calculate_rewards(*positional, **named)
        self._rewards = (found * self.reward_weights.to(found.device)).nansum(dim=1)
        self._rewards[found.isnan().all(dim=1)] = float("nan")
        return found

    def completion_batch(self, output: Mapping[str, Any], inputs: Sequence[Mapping[str, Any]]) -> CompletionBatch:
        """What TRL made of rows of the data set, as this package has it; a completion left out of the loss has no tokens.

        Raises DataError where a completion holds tokens that the policy did not write, or the data set lacks a column.
        """
        if "tool_mask" in output:
            raise DataError("Every token of a completion must be the policy's own: leave env_mask out of rollout_func.")
        prompts, completions = (
            [ids[mask].tolist() for ids, mask in zip(output[f"{part}_ids"], output[f"{part}_mask"].bool(), strict=True)]
            for part in ("prompt", "completion")
        )
        cfg, context, column = self.args, context_of(self.estimator), shown_column(self.estimator)
        told = [] if column is None else told_problems(cfg.method, column, getattr(cfg, f"{column}_column"), inputs)
        looks = [
            in_context(context, problem, row["prompt"], self.task, self._encoded)
            for problem, row in zip(told, inputs, strict=False)
            if context is not None
        ]
        return collate(
            prompts,
            completions,
            [[0.0] * len(ids) for ids in completions],  # no estimator looks at them
            [self.task.segments(ids, needs_answer=self.args.probe_settings().needs_answer) for ids in completions],
            [self.task.encode_gold(problem) for problem in told] if context is None else [],
            looks or None,
            pad_id=self.task.pad_id,
            device=output["completion_ids"].device,
        )

    def _encoded(self, prompt: list[dict[str, Any]]) -> list[int]:
        """A conversation's token ids, by TRL's own template."""
        ids, *_ = self._tokenize_prompts([prompt])
        return list(ids[0])

    def token_credit(
        self, batch: CompletionBatch, advantages: Tensor, output: Mapping[str, Any]
    ) -> tuple[Tensor, Tensor]:
        """Token weights and token advantages (B, T), as the learner's, of completions with advantages (B,).

        Weights are 1 where the advantage is 0, and where a gate would need the answer that is not there. A completion without
        a reward has the advantage 0 throughout, as in TRL, and is in nobody's group.
        """
        step, cfg = self.batches_drawn, self.args
        credit = CreditAssigner(
            self.estimator,
            make_gate(**cfg.gating_settings().options()),
            probe_of(cfg.probe_settings(), self.task, step, self.scorer),
            cfg.times_surprisal,
            neutral_id=self.task.encode_neutral(cfg.counterfactual_text),
        )
        weights = torch.ones(batch.completion_mask.shape, device=advantages.device)
        token_advantages = advantages[:, None] * weights
        before = self.accelerator.process_index * len(batch)  # completions of the processes before this one
        rewards = self._rewards[before : before + len(batch)]
        together, wanted = needs_batch(self.estimator), (batch.completion_lengths > 0) & ~rewards.isnan()
        if gives(self.estimator) != "advantages" and not together:
            wanted &= advantages != 0
        if gives(self.estimator) == "importance":
            wanted &= batch.has_segments
        index = wanted.nonzero()[:, 0]
        at_once = cfg.per_device_train_batch_size * batch.input_ids.shape[1]  # tokens of TRL's own padded forward
        with self._policy() as policy:
            for rows, scores in self._scored(policy, batch, index, at_once, output):
                given = credit.assign(
                    CreditInputs(
                        policy,
                        batch.rows(rows),
                        credit.probe,
                        scores,
                        [derive_seed(cfg.seed, "credit", step, before + row) for row in rows.tolist()],
                        advantages=advantages[rows],
                        groups=(before + rows) // self.num_generations,
                        rewards=rewards[rows],
                        step=step,
                        temperature=self.temperature,
                        teacher=self.teacher,
                    )
                )
                weights[rows], token_advantages[rows] = given.token_weights, given.token_advantages
        return weights, token_advantages

    @property
    def batches_drawn(self) -> int:
        """How many batches of completions there were before this one: the learner's step, for the probe and for seeds."""
        cfg = self.args
        assert cfg.steps_per_generation is not None  # GRPOConfig has filled it in
        # What TRL itself counts (_step) starts again in a run that goes on from a checkpoint.
        forwards = (
            self.state.global_step * cfg.gradient_accumulation_steps + self._step % cfg.gradient_accumulation_steps
        )
        return forwards // (cfg.steps_per_generation * self.num_iterations)

    @contextmanager
    def _policy(self) -> Iterator[PreTrainedModel]:
        """The model that is trained, without wrappers and dropout, in the precision of TRL's own forwards.

        But for OAR-G: autocast leaves fewer digits than it takes to tell a noise of 1e-3, so it runs in that of the weights.
        """
        noisy = isinstance(self.estimator, GradientImportance)
        self.model.eval()
        try:
            with nullcontext() if noisy else self.accelerator.autocast():
                yield self._bare_model()
        finally:
            self.model.train()

    def _bare_model(self) -> PreTrainedModel:
        model = self.accelerator.unwrap_model(self.model)
        return model.get_base_model() if is_peft_model(model) else model

    def _scored(
        self, policy: PreTrainedModel, batch: CompletionBatch, index: Tensor, at_once: int, output: Mapping[str, Any]
    ) -> Iterator[tuple[Tensor, Scores]]:
        """Which completions are credited at a time, and their scores: a micro-batch, or all for a signal that compares them."""
        micro_batches = batch.micro_batches(index, at_once)
        parts = ((rows, self._scores(policy, batch.rows(rows), rows, output)) for rows in micro_batches)
        if not needs_batch(self.estimator):
            yield from parts
        elif len(index):
            logprobs, entropy = torch.zeros(2, *batch.completion_mask.shape, device=index.device)
            for rows, scores in parts:
                logprobs[rows], entropy[rows] = scores.logprobs, scores.entropy
            yield index, Scores(logprobs[index], entropy[index])

    @torch.no_grad()
    def _scores(
        self, policy: PreTrainedModel, some: CompletionBatch, rows: Tensor, output: Mapping[str, Any]
    ) -> Scores:
        if isinstance(self.estimator, UNSCORED) and not self.args.times_surprisal:
            nothing = torch.zeros(some.completion_mask.shape, device=some.input_ids.device)
            return Scores(nothing, nothing)
        scores = score_completions(policy, some, temperature=self.temperature)
        if not self._forward_is_proven:
            self._prove_forward(scores.logprobs, some.completion_mask, rows, output)
        assert scores.forward is not None  # just made
        # For adapters TRL lets embeddings ask for a gradient even here, where there is no graph for it to come from.
        forward = replace(scores.forward, embeddings=scores.forward.embeddings.detach())
        return replace(scores, forward=forward)

    def _prove_forward(self, logprobs: Tensor, mask: Tensor, rows: Tensor, output: Mapping[str, Any]) -> None:
        """Compare logprobs (R, T) under `mask` with those of TRL's own forward. Raises DataError where they differ.

        The pieces run a model as embeddings, decoder and a linear head; a model may do more (cap its logits, put an adapter's
        prompt before the tokens), and then weights would be of another model.
        """
        ids, attended = (
            torch.cat([output[f"prompt_{part}"][rows], output[f"completion_{part}"][rows]], dim=1)
            for part in ("ids", "mask")
        )
        own, _, _ = self._get_per_token_logps_and_entropies(
            self.model, ids, attended, output["completion_ids"].shape[1]
        )
        difference = float((own[:, : mask.shape[1]] - logprobs)[mask].abs().mean())
        exact = self.model.dtype == torch.float32 and self.accelerator.mixed_precision == "no"
        if not difference <= MAX_LOGPROB_DIFF[exact]:
            raise DataError(
                f"OAR's forward of the model must be TRL's, but their logprobs differ by {difference:.3g} nats on average: "
                "train a decoder whose logits are a linear head's (as Qwen2's), fully or with LoRA."
            )
        self._forward_is_proven = True

    def _note(self, batch: CompletionBatch, advantages: Tensor, weights: Tensor, seconds: float) -> None:
        """Diagnostics of the weights (docs/METHOD.md §8) by the learner's names; fallbacks are a share of what is in the loss.

        Of the completions of all processes; the seconds are those of the slowest.
        """
        weights, reasoning = self._of_all(weights), self._of_all(batch.reasoning_mask)
        has_segments, in_loss = self._of_all(batch.has_segments), self._of_all(batch.completion_lengths) > 0
        credited = has_segments & (self._of_all(advantages) != 0)
        metrics = weight_metrics(weights[credited], reasoning[credited])
        metrics = {f"weights/{name}": value for name, value in metrics.items()}
        metrics["probe/fallback_share"] = float((~has_segments)[in_loss].float().mean()) if in_loss.any() else 0.0
        metrics["seconds/credit"] = float(self._of_all(torch.tensor([seconds], device=weights.device)).max())
        for name, value in metrics.items():
            self._metrics["train"][name].append(value)
        answers = has_segments[in_loss]
        by_importance = gives(self.estimator) == "importance" and not isinstance(self.estimator, UniformImportance)
        if by_importance and len(answers) and not answers.any() and self.accelerator.is_main_process:
            warnings.warn(
                f"No completion of a batch announces an answer with {self.args.marker!r} (marker), so all tokens weigh 1.",
                stacklevel=2,
            )

    def _of_all(self, values: Tensor) -> Tensor:
        """Values (B,) or (B, T) of this process's completions together with those of all others, in the order of processes."""
        numbers = values.float()  # padding makes int64 of booleans, on those processes alone that pad
        wide = self.accelerator.pad_across_processes(numbers, dim=1) if values.dim() > 1 else numbers
        gathered: Tensor = self.accelerator.gather(wide)
        return gathered.to(values.dtype)
