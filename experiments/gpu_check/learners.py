"""Real learners of this process: random models, embedded word problems, rollouts and sync of engine.py."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from experiments.gpu_check.device import DEVICE, FULL
from experiments.gpu_check.engine import OwnSampling, task_of
from oar.common.clock import Clock
from oar.config import TrainConfig
from oar.learner.beside import Beside
from oar.learner.collect import GradedBatch
from oar.learner.credit import Credited, StepCredit
from oar.learner.distributed import ALONE, Ranks
from oar.learner.sharding import shard
from oar.learner.step import Learner
from oar.learner.update import LossBatch
from oar.model.lora import add_adapter
from oar.plan import Architecture
from oar.tasks.sheets.tokenizer import build_tokenizer as sheets_tokenizer
from oar.tasks.words import build_tokenizer

WORDS = max(len(build_tokenizer()), len(sheets_tokenizer()))  # for both embedded tasks
TINY = Architecture(2, 64, 4, 2, 96, vocabulary=WORDS, tied=False, context=1024)
STAGES = ("scoring", "update", "importance")  # of a step, as oar/learner/step.py has them


def cast(model: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    """The model with its weights in `dtype`; rotary frequencies stay in float32, as in the engine and under FSDP2."""
    for weight in model.parameters():
        weight.data = weight.data.to(dtype)
    return model


def random_model(sizes: Architecture, *, spread: float = 0.02, device: torch.device = DEVICE) -> Qwen2ForCausalLM:
    """A Qwen2 in float32, made where it will be used; `spread`: the standard deviation of its weights (Qwen2.5: 0.02)."""
    words = build_tokenizer()
    ids = {"pad_token_id": words.pad_token_id, "bos_token_id": words.bos_token_id, "eos_token_id": words.eos_token_id}
    config = Qwen2Config(**sizes.config(), **ids, initializer_range=spread)
    torch.manual_seed(0)
    with device:
        model = Qwen2ForCausalLM(config)
    # Away from the uniform distribution and from zero: else half of what is compared is 0 on every device.
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("_proj.bias"):
                weight.normal_(0, spread)
    return model.eval()


class Watch(Clock):
    """A clock that notes the allocator's peak in bytes as well; of a stage within another it counts for the inner one."""

    def __init__(self) -> None:
        super().__init__(DEVICE)
        self.peaks = dict.fromkeys(STAGES, 0.0)

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        self._note()
        with super().__call__(stage):
            try:
                yield
            finally:
                self._note()

    def _note(self) -> None:
        """What was held since the last call belongs to the innermost stage that is open."""
        if not FULL:
            return
        if self._open:
            peak = float(torch.cuda.max_memory_allocated())
            self.peaks[self._open[-1]] = max(self.peaks[self._open[-1]], peak)
        torch.cuda.reset_peak_memory_stats()


class WatchedLearner(Learner):
    """A learner whose stages `watch` sees as well."""

    watch: Watch

    def credit(self, graded: GradedBatch, advantages: Tensor, clock: Clock) -> StepCredit:
        return super().credit(graded, advantages, self.watch)

    def score(self, data: LossBatch, credit: StepCredit, which: Tensor) -> list[Credited]:
        with self.watch("scoring"):
            return super().score(data, credit, which)

    def update(
        self, data: LossBatch, credit: StepCredit, scored: list[Credited], counts: Tensor, version: int
    ) -> tuple[dict[str, float], Credited]:
        with self.watch("update"):
            return super().update(data, credit, scored, counts, version)


def learner_on(
    cfg: TrainConfig,
    model: PreTrainedModel,
    engine: OwnSampling,
    ranks: Ranks = ALONE,
    beside: Beside | None = None,
) -> WatchedLearner:
    """A learner of `model` (float32), with an adapter, shards and a cast where `cfg` says so; the engine has its weights."""
    if cfg.model.lora is not None:
        add_adapter(model, cfg.model.lora, cfg.seed)
    if cfg.learner.compute_dtype != "float32":
        shard(model, getattr(torch, cfg.learner.compute_dtype))
    learner = WatchedLearner(cfg, model, task_of(cfg), engine, engine, ranks, beside)
    learner.watch = Watch()
    learner.publish()
    return learner
