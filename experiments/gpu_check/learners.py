"""Real learners of this process: random models, embedded word problems, rollouts and sync of engine.py."""

import time
from functools import wraps
from typing import Any

import torch
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from experiments.gpu_check.device import DEVICE, FULL, wait
from experiments.gpu_check.engine import OwnSampling, task_of
from oar.config import TrainConfig
from oar.learner.distributed import ALONE, Ranks
from oar.learner.sharding import shard
from oar.learner.step import Learner
from oar.model.lora import add_adapter
from oar.plan import Architecture
from oar.tasks.words import build_tokenizer

TINY = Architecture(2, 64, 4, 2, 96, vocabulary=len(build_tokenizer()), tied=False, context=1024)
STAGES = {"score": "scoring", "update": "update"}  # the learner's methods; docs/METHOD.md's names
IMPORTANCE = "importance"  # of what its method `credit` gives


def cast(model: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    """The model with its weights in `dtype`; rotary frequencies stay in float32, as in the engine and under FSDP2."""
    for weight in model.parameters():
        weight.data = weight.data.to(dtype)
    return model


def random_model(sizes: Architecture, *, spread: float = 0.02, device: torch.device = DEVICE) -> Qwen2ForCausalLM:
    """A Qwen2 in float32, made where it will be used; `spread`: the standard deviation of its weights (Qwen2.5: 0.02)."""
    tokenizer = build_tokenizer()
    config = Qwen2Config(
        vocab_size=sizes.vocabulary,
        hidden_size=sizes.hidden,
        intermediate_size=sizes.intermediate,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.kv_heads,
        max_position_embeddings=sizes.context,
        initializer_range=spread,
        tie_word_embeddings=sizes.tied,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    torch.manual_seed(0)
    with device:
        model = Qwen2ForCausalLM(config)
    # Away from the uniform distribution and from zero: else half of what is compared is 0 on every device.
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("_proj.bias"):
                weight.normal_(0, spread)
    return model.eval()


def learner_on(
    cfg: TrainConfig,
    model: PreTrainedModel,
    engine: OwnSampling,
    ranks: Ranks = ALONE,
    reference: PreTrainedModel | None = None,
) -> Learner:
    """A learner of `model` (float32), with an adapter, shards and a cast where `cfg` says so."""
    if cfg.model.lora is not None:
        add_adapter(model, cfg.model.lora, cfg.seed)
    if cfg.learner.compute_dtype != "float32":
        shard(model, getattr(torch, cfg.learner.compute_dtype))
    return Learner(cfg, model, reference, task_of(cfg), engine, engine, ranks)


class Stages:
    """Seconds and peak bytes of the allocator by stage of `learner`'s steps from now on, the device in step at its ends.

    Of a stage within another they count for the inner one.
    """

    def __init__(self, learner: Learner) -> None:
        self.seconds: dict[str, float] = dict.fromkeys([*STAGES.values(), IMPORTANCE], 0.0)
        self.peaks: dict[str, float] = dict.fromkeys([*STAGES.values(), IMPORTANCE], 0.0)
        self._open: list[str] = []
        self._since = 0.0
        for method, stage in STAGES.items():
            setattr(learner, method, self._timed(getattr(learner, method), stage))
        credit_of = learner.credit
        vars(learner)["credit"] = lambda *given: self._timed(credit_of(*given), IMPORTANCE)

    def _timed(self, method: Any, stage: str) -> Any:
        @wraps(method)
        def timed(*given: Any, **named: Any) -> Any:
            self._border()
            self._open.append(stage)
            try:
                return method(*given, **named)
            finally:
                self._border()
                self._open.pop()

        return timed

    def _border(self) -> None:
        """What went by since the last border belongs to the innermost stage that is open."""
        wait()
        if self._open:
            stage = self._open[-1]
            self.seconds[stage] += time.perf_counter() - self._since
            if FULL:
                self.peaks[stage] = max(self.peaks[stage], float(torch.cuda.max_memory_allocated()))
        if FULL:
            torch.cuda.reset_peak_memory_stats()
        self._since = time.perf_counter()
