"""Teaches an embedded base model from scratch: supervised, on fresh demonstrations, until it is as good as it should be."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from oar.common.errors import ConfigError
from oar.common.seeding import derive_seed
from oar.tasks.problem import Problem

IGNORED = -100  # label of a token that is not taught: prompt and padding


class Lesson(Protocol):
    """What a task teaches."""

    def tokenizer(self) -> PreTrainedTokenizerFast:
        """Of every word of the task."""
        ...

    def demonstration(self, index: int) -> tuple[str, str]:
        """Question and completion number `index`; never those of a held-out question."""
        ...

    def tuning(self) -> Mapping[str, Sequence[Problem]]:
        """Held-out problems by set, on which it is seen when teaching may stop."""
        ...

    def is_good(self, problem: Problem, completion: str) -> bool:
        """Whether a completion is what was to be learned."""
        ...


@dataclass(frozen=True)
class Teaching(ABC):
    """All that a base model depends on; its hash names the folder. Source: our own tuning (docs/EMBEDDED.md)."""

    seed: int = 0  # of the initial weights, the problems and the sampling of the accuracy
    filler: int = 0  # words of random filler in the demonstrations, per operation or entry
    # the model: Qwen2 architecture
    tie_embeddings: bool = False  # for studies without the engine: vLLM on CPU keeps stale logits weights for tied ones
    hidden_size: int = 128
    num_layers: int = 3
    num_heads: int = 4
    num_key_value_heads: int = 2
    intermediate_size: int = 256
    rope_theta: float = 1e4
    initializer_range: float = 0.06  # standard deviation; 0.02 learns much more slowly
    max_position_embeddings: int = 1024  # tokens of prompt and completion
    # the teaching
    batch_size: int = 32  # demonstrations a step
    micro_batch_size: int = 8  # demonstrations a forward pass, sorted by length: saves padding
    muon_lr: float = 1e-2  # of the matrices inside the layers (torch.optim.Muon, match_rms_adamw)
    adamw_lr: float = 2e-2  # of embeddings, lm_head, norms and biases; 5e-3 needs 320 steps instead of 260
    adamw_beta2: float = 0.95
    weight_decay: float = 0.01  # of every parameter
    max_grad_norm: float = 1.0
    warmup_steps: int = 50
    final_lr_fraction: float = 0.05  # of the peak learning rate, reached linearly at max_steps
    max_steps: int = 600  # a target that is not reached by then is an error
    # when to stop: accuracy is a phase transition over some hundred steps, so it is watched, not the step count
    target_accuracy: float = 0.4  # temperature 1, mean of the sets, on the tuning split
    first_check_step: int = 200  # the target is not reached before, and a check takes seconds
    check_every: int = 10  # steps
    check_problems: int = 60  # a set, one completion each
    max_new_tokens: int = 96  # of a completion when sampled; nearly all demonstrations without filler are shorter

    def __post_init__(self) -> None:
        counts = "batch_size micro_batch_size num_layers max_steps check_every check_problems max_new_tokens"
        for name in counts.split():
            if getattr(self, name) < 1:
                raise ConfigError(f"model.teach.{name} must be 1 or more, got {getattr(self, name)}.")
        if not 0 <= self.target_accuracy < 1:
            raise ConfigError(f"model.teach.target_accuracy must lie in [0, 1), got {self.target_accuracy}.")
        if self.hidden_size % self.num_heads or self.num_heads % self.num_key_value_heads:
            raise ConfigError("model.teach: num_heads must divide hidden_size, and num_key_value_heads num_heads.")

    @abstractmethod
    def lesson(self) -> Lesson:
        """What is taught."""


@dataclass(frozen=True)
class Taught:
    """The outcome: the model, its tokenizer, the steps and seconds taken, and accuracy by set."""

    model: Qwen2ForCausalLM
    tokenizer: PreTrainedTokenizerBase
    steps: int
    seconds: float
    accuracy: dict[str, float]

    @property
    def mean_accuracy(self) -> float:
        return sum(self.accuracy.values()) / len(self.accuracy)


def teach(config: Teaching, progress: Callable[[str], None]) -> Taught:
    """Teach until `target_accuracy` on the tuning split; the same config gives bit-equal weights.

    Runs on one thread, because the order of sums depends on their number. ConfigError when the target is not reached
    within `max_steps`.
    """
    started = time.monotonic()
    lesson = config.lesson()
    tokenizer, tuning = lesson.tokenizer(), lesson.tuning()
    with one_thread():
        model = build_model(config, tokenizer)
        optimizers = build_optimizers(model, config)
        schedules = [torch.optim.lr_scheduler.LambdaLR(each, _schedule(config)) for each in optimizers]
        for step in range(1, config.max_steps + 1):
            pairs = examples(lesson, tokenizer, config.batch_size, step - 1)
            loss = backward(model, pairs, tokenizer.pad_token_id, config.micro_batch_size)
            torch.nn.utils.clip_grad_norm_(model.parameters(), config.max_grad_norm)
            for optimizer, schedule in zip(optimizers, schedules, strict=True):
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()
            checked = step >= config.first_check_step and step % config.check_every == 0
            if checked or step == config.max_steps:
                accuracy = {}
                for name, chosen in tuning.items():
                    drawn_with = derive_seed(config.seed, name, step)
                    accuracy[name] = good_share(lesson, model, tokenizer, chosen, config.max_new_tokens, drawn_with)
                taught = Taught(model, tokenizer, step, time.monotonic() - started, accuracy)
                progress(f"step {step}: loss {loss:.3f}, accuracy {taught.mean_accuracy:.1%}, {taught.seconds:.0f} s")
                if taught.mean_accuracy >= config.target_accuracy:
                    return taught
            elif step % config.check_every == 0:
                progress(f"step {step}: loss {loss:.3f}")
    raise ConfigError(
        f"The base model reached {taught.mean_accuracy:.1%} after {config.max_steps} steps, "
        f"not {config.target_accuracy:.1%}: raise model.teach.max_steps or lower model.teach.target_accuracy."
    )


def build_model(config: Teaching, tokenizer: PreTrainedTokenizerBase) -> Qwen2ForCausalLM:
    """A fresh float32 model; its pad embedding is exactly zero.

    It gets no gradient, so it stays zero; unless the embeddings are tied: then the head moves it.
    """
    architecture = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=config.hidden_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_key_value_heads,
        intermediate_size=config.intermediate_size,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
        initializer_range=config.initializer_range,
        max_position_embeddings=config.max_position_embeddings,
        tie_word_embeddings=config.tie_embeddings,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(config.seed, "initial weights"))
        model = Qwen2ForCausalLM(architecture)
    model.model.embed_tokens.weight.data[tokenizer.pad_token_id] = 0
    return model


def build_optimizers(model: Qwen2ForCausalLM, config: Teaching) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the layers, AdamW for everything else."""
    hidden = [parameter for parameter in model.model.layers.parameters() if parameter.ndim == 2]
    chosen = {id(parameter) for parameter in hidden}
    rest = [parameter for parameter in model.parameters() if id(parameter) not in chosen]
    return [
        torch.optim.Muon(hidden, lr=config.muon_lr, weight_decay=config.weight_decay, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, lr=config.adamw_lr, betas=(0.9, config.adamw_beta2), weight_decay=config.weight_decay),
    ]


def examples(
    lesson: Lesson, tokenizer: PreTrainedTokenizerBase, count: int, step: int
) -> list[tuple[list[int], list[int]]]:
    """The batch of step `step` (from 0): (prompt ids, completion ids) of fresh problems, shortest first."""
    pairs = []
    for index in range(step * count, (step + 1) * count):
        question, text = lesson.demonstration(index)
        completion = [*tokenizer(text, add_special_tokens=False).input_ids, tokenizer.eos_token_id]
        pairs.append((tokenizer(question).input_ids, completion))
    return sorted(pairs, key=lambda pair: len(pair[0]) + len(pair[1]))


def backward(
    model: PreTrainedModel, pairs: Sequence[tuple[list[int], list[int]]], pad_id: int, micro_batch_size: int
) -> float:
    """Add the gradient of the mean cross-entropy over all completion tokens, and return that mean.

    Micro-batches of similar length save most of the padding; they change the gradient only by rounding.
    """
    taught_tokens = sum(len(completion) for _, completion in pairs)
    total = 0.0
    for first in range(0, len(pairs), micro_batch_size):
        ids, labels = (padded.to(model.device) for padded in _padded(pairs[first : first + micro_batch_size], pad_id))
        hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1]
        taught = labels[:, 1:] != IGNORED
        logits = model.get_output_embeddings()(hidden[taught])
        loss = F.cross_entropy(logits, labels[:, 1:][taught], reduction="sum") / taught_tokens
        loss.backward()
        total += loss.item()
    return total


def _padded(pairs: Sequence[tuple[list[int], list[int]]], pad_id: int) -> tuple[Tensor, Tensor]:
    """Ids and labels, each (B, L). Padding stands on the right, so causal attention needs no mask for it."""
    length = max(len(prompt) + len(completion) for prompt, completion in pairs)
    ids = torch.full((len(pairs), length), pad_id)
    labels = torch.full((len(pairs), length), IGNORED)
    for row, (prompt, completion) in enumerate(pairs):
        end = len(prompt) + len(completion)
        ids[row, :end] = torch.tensor(prompt + completion)
        labels[row, len(prompt) : end] = torch.tensor(completion)
    return ids, labels


@torch.no_grad()
def good_share(
    lesson: Lesson,
    model: Qwen2ForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    problems: Sequence[Problem],
    max_new_tokens: int,
    seed: int,
) -> float:
    """Share of good completions, one per problem at temperature 1, drawn in one batch."""
    prompts = tokenizer([one.question for one in problems], padding=True, padding_side="left", return_tensors="pt")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        sequences = cast(Any, model).generate(  # its declared type does not admit its own models
            **prompts, do_sample=True, temperature=1.0, top_k=0, max_new_tokens=max_new_tokens
        )
    texts = tokenizer.batch_decode(sequences[:, prompts.input_ids.shape[1] :], skip_special_tokens=True)
    return sum(map(lesson.is_good, problems, texts)) / len(problems)


def _schedule(config: Teaching) -> Callable[[int], float]:
    """Linear warm-up, then linear decay to `final_lr_fraction` at `max_steps`."""

    def factor(step: int) -> float:
        warmup = (step + 1) / max(config.warmup_steps, 1)
        decay = 1 - (1 - config.final_lr_fraction) * step / config.max_steps
        return min(warmup, decay)

    return factor


@contextmanager
def one_thread() -> Iterator[None]:
    """The order of sums depends on the number of threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
