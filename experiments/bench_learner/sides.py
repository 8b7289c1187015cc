"""The same training steps by this learner and by TRL's GRPOTrainer (for experiments/bench_learner/__main__.py).

Both get the same weights, prompts, completions, rewards, old logprobs, objective and optimizer's numbers. A step is forward and
backward of every micro-batch, clipping of the gradient and the optimizer's step; drawing, grading and collating are left out.
"""

import os
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from experiments.bench_learner.page import OAR, OAR_RECOMPUTE, TRL, TRL_RECOMPUTE
from experiments.shared.counted_tokens import counted_tokens
from experiments.shared.fresh_process import like_the_learner
from experiments.shared.made_up import EOS, PAD, WARM_UP_LENGTH, made_up_model
from experiments.shared.peak_memory import Mark, peak_memory
from oar.analysis.signals.examine import completion_advantages
from oar.config import TrainConfig
from oar.learner.credit import given_credit
from oar.learner.update import LossBatch, accumulate_gradient, make_optimizer
from oar.method.batch import collate

Found = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Steps:
    """`steps` training steps on the same completions, after one on short ones, since the first call of every kernel is slow.

    architecture: keyword arguments of Qwen2Config; prompts, completions: token ids; old_logprobs: of the completions' tokens, as
    if an older policy had drawn them, so that the ratio is not 1 and the loss tells implementations apart; rewards: one each.
    cfg.learner says the objective and the optimizer; `together` completions are a micro-batch.
    """

    architecture: dict[str, Any]
    dtype: str
    device: str
    seed: int
    prompts: list[list[int]]
    completions: list[list[int]]
    old_logprobs: list[list[float]]
    rewards: list[float]
    cfg: TrainConfig
    steps: int
    together: int = 1

    def short(self) -> "Steps":
        """The same with the beginnings of the completions."""
        completions = [ids[:WARM_UP_LENGTH] for ids in self.completions]
        return replace(
            self, completions=completions, old_logprobs=[values[:WARM_UP_LENGTH] for values in self.old_logprobs]
        )

    def model(self) -> PreTrainedModel:
        """Random weights."""
        return made_up_model(self.architecture, self.dtype, self.device, self.seed)


class Notes:
    """What is measured of a side, step by step; the first, short step leaves no note but its peak."""

    def __init__(self, device: str, mark: Mark | None) -> None:
        self.found: Found = {"seconds": [], "losses": [], "gradient_norms": [], "tokens": []}
        self._mark, self._device = mark, device
        self._before, self._peak, self._steps = mark()[0] if mark else 0, 0, 0

    def now(self) -> float:
        """Seconds."""
        if self._device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def step(self, seconds: float, loss: float, gradient_norm: float, tokens: int) -> None:
        """One step is done."""
        if self._mark:
            self._peak = max(self._peak, self._mark()[1])
        self._steps += 1
        if self._steps == 1:
            return
        values = (("seconds", seconds), ("losses", loss), ("gradient_norms", gradient_norm), ("tokens", tokens))
        for name, value in values:
            self.found[name].append(value)

    def told(self) -> Found:
        """All notes, and the peak in bytes above what was held when notes began; None where it was not counted."""
        return self.found | {"peak": self._peak - self._before if self._mark else None}


def measure_side(side: str, case: Steps, count_memory: bool) -> Found:
    """One of `SIDES`. `count_memory`: the peak, at the price of time."""
    measure, recompute = SIDES[side]
    with peak_memory(case.device) if count_memory else nullcontext() as mark:
        return measure(case, recompute, mark)


def measure_oar(case: Steps, recompute: bool, mark: Mark | None) -> Found:
    """This learner."""
    like_the_learner(case.cfg.learner.threads)
    model, cfg = case.model(), replace(case.cfg.learner, activation_checkpointing=recompute)
    optimizer, notes = make_optimizer(model, cfg), Notes(case.device, mark)
    for steps, count in ((case.short(), 1), (case, case.steps)):
        data = loss_batch(steps)
        known = given_credit(
            data.batch.sampler_logprobs, data.advantages[:, None] * torch.ones_like(data.batch.sampler_logprobs)
        )
        for _ in range(count):
            with counted_tokens(model) as tokens:
                started = notes.now()
                optimizer.zero_grad(set_to_none=True)
                report, _ = accumulate_gradient(
                    model,
                    None,
                    data,
                    torch.arange(len(data.batch), device=case.device),
                    cfg,
                    temperature=case.cfg.rollout.temperature,
                    max_completion_length=data.batch.completion_ids.shape[1],
                    credit=known.lookup,
                )
                norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), cfg.max_grad_norm))
                optimizer.step()
                notes.step(notes.now() - started, report["train/loss"], norm, tokens.forward)
    return notes.told()


def loss_batch(case: Steps) -> LossBatch:
    """The batch with its advantages; its old logprobs are those of the sampler."""
    batch = collate(
        case.prompts,
        case.completions,
        case.old_logprobs,
        [None] * len(case.prompts),
        pad_id=PAD,
        device=case.device,
    )
    rewards = torch.tensor(case.rewards, device=case.device)
    return LossBatch.of(batch, completion_advantages(rewards, case.cfg.learner))


def measure_trl(case: Steps, recompute: bool, mark: Mark | None) -> Found:
    """TRL's GRPOTrainer, whose own way to draw completions is replaced by handing these over; its optimizer is its default."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    warnings.filterwarnings("ignore")
    # Imported here: the parent and the other side must not pay for it.
    from datasets import Dataset
    from transformers import PrinterCallback, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(case.cfg.learner.threads)
    learner, short, outside = case.cfg.learner, case.short(), [0.0]
    model, rows = case.model(), len(case.prompts)
    drawn = short

    class Trainer(GRPOTrainer):
        """Notes the loss and the norm, and leaves what is not the learner's part out of the clock."""

        loss, norm = 0.0, 0.0

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            started = time.perf_counter()
            found = super()._generate_and_score_completions(inputs)
            found["old_per_token_logps"] = padded(drawn.old_logprobs, case.device)
            outside[0] += time.perf_counter() - started
            return found

        def compute_loss(self, *args: Any, **options: Any) -> Any:
            loss = super().compute_loss(*args, **options)
            self.loss += float(loss.detach())
            return loss

        def _clip_grad_norm(self, *args: Any, **options: Any) -> Any:
            norm = super()._clip_grad_norm(*args, **options)
            self.norm = float(norm)
            return norm

    class Clock(TrainerCallback):
        """Turns a step of the trainer into a note."""

        def on_train_begin(self, *args: Any, **options: Any) -> None:
            self.notes = Notes(case.device, mark)

        def on_step_begin(self, *args: Any, **options: Any) -> None:
            trainer.loss, outside[0] = 0.0, 0.0
            self.counted = tokens.forward
            self.started = self.notes.now()

        def on_step_end(self, *args: Any, **options: Any) -> None:
            nonlocal drawn
            seconds = self.notes.now() - self.started - outside[0]
            self.notes.step(seconds, trainer.loss, trainer.norm, tokens.forward - self.counted)
            drawn = case

    def rewards(**_: Any) -> list[float | None]:
        return [*case.rewards]

    clock = Clock()
    with TemporaryDirectory() as folder, counted_tokens(model) as tokens:
        options = GRPOConfig(
            output_dir=folder,
            per_device_train_batch_size=case.together,
            gradient_accumulation_steps=rows // case.together,
            num_generations=learner.num_generations,
            max_completion_length=max(map(len, case.completions)),
            temperature=case.cfg.rollout.temperature,
            loss_type="grpo",
            beta=0.0,
            epsilon=learner.clip_eps_low,
            epsilon_high=learner.clip_eps_high,
            learning_rate=learner.lr,
            lr_scheduler_type="constant",
            adam_beta1=learner.adam_beta1,
            adam_beta2=learner.adam_beta2,
            weight_decay=learner.weight_decay,
            max_grad_norm=learner.max_grad_norm,
            max_steps=1 + case.steps,
            bf16=False,
            gradient_checkpointing=recompute,
            use_cpu=case.device == "cpu",
            seed=case.seed,
            report_to=[],
            logging_strategy="no",
            save_strategy="no",
            disable_tqdm=True,
        )
        trainer = Trainer(
            model=model,
            reward_funcs=rewards,
            args=options,
            train_dataset=Dataset.from_list([{"prompt": ""}] * (rows // learner.num_generations)),
            processing_class=tokenizer(int(case.architecture["vocab_size"])),
            callbacks=[clock],
            rollout_func=lambda prompts, _: {
                "prompt_ids": drawn.prompts,
                "completion_ids": drawn.completions,
                "logprobs": drawn.old_logprobs,
            },
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return clock.notes.told()


def padded(values: Sequence[Sequence[float]], device: str) -> Tensor:
    """(B, T), zeros at the right."""
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in values], batch_first=True).to(device)


def tokenizer(words: int) -> Any:
    """One word for each token id: the trainer wants to decode what it trains on."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    names = {f"w{index}": index for index in range(words)}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(names, unk_token=f"w{PAD}")),
        pad_token=f"w{PAD}",
        eos_token=f"w{EOS}",
    )


SIDES: dict[str, tuple[Callable[[Steps, bool, Mark | None], Found], bool]] = {
    OAR: (measure_oar, False),
    OAR_RECOMPUTE: (measure_oar, True),
    TRL: (measure_trl, False),
    TRL_RECOMPUTE: (measure_trl, True),  # what the trainer does by default
}
