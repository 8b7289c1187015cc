"""The largest micro-batch that a device holds, by the memory of a plan."""

from bisect import bisect_right
from dataclasses import dataclass, replace

from oar.config import TrainConfig
from oar.method.importance import CreditSignal
from oar.plan.assumptions import Assumptions
from oar.plan.memory import GIB, memory_of
from oar.plan.model import Architecture

STEP = 1024  # tokens between two sizes that are tried


@dataclass(frozen=True, slots=True)
class Fit:
    """micro_batch_tokens: the largest that fits, None where no completion of full length does. least_gib: what one needs."""

    micro_batch_tokens: int | None
    least_gib: float


def largest_fit(
    cfg: TrainConfig,
    model: Architecture,
    assume: Assumptions,
    estimator: CreditSignal,
    scorer: Architecture | None = None,
) -> Fit:
    """Of the learner's micro-batches on devices of `assume.memory_gib`, from one completion to a rank's share of an update."""
    learner = cfg.learner
    completion = assume.longest_prompt + cfg.rollout.max_new_tokens
    first = -(-completion // STEP) * STEP
    most = max(first, learner.batch_size // learner.updates_per_rollout // learner.ranks * completion)

    def needed_gib(tokens: int) -> float:
        sized = replace(cfg, learner=replace(learner, micro_batch_tokens=tokens))
        return memory_of(sized, model, assume, estimator, scorer).device / GIB

    sizes = range(first, most + 1, STEP)
    fitting = bisect_right(sizes, assume.memory_gib, key=needed_gib)
    return Fit(sizes[fitting - 1] if fitting else None, needed_gib(first))
