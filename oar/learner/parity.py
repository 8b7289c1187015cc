"""Do the engine and the learner hold the same weights? Their logprobs of the same tokens say so."""

from torch import Tensor

from oar.common.errors import SyncError

CAUSES = (
    "likely causes: a weight sync that did not reach every tensor (tied embeddings on CPU), another run using the same "
    "server, a stale prefix cache, different temperatures or dtypes"
)


def parity_metrics(sampler_logprobs: Tensor, old_logprobs: Tensor, mask: Tensor, *, bound: float) -> dict[str, float]:
    """Mean and max of |sampler - learner logprob| (B, T) under `mask`, in nats.

    Raises SyncError where the mean is above `bound` or not a number.
    """
    difference = (sampler_logprobs - old_logprobs)[mask.bool()].abs()
    mean, largest = float(difference.mean()), float(difference.max())
    if not mean <= bound:
        raise SyncError(
            f"The engine's and the learner's logprobs must agree to {bound:g} nats on average (sync.max_logprob_diff), "
            f"but differ by {mean:.3g} (largest {largest:.3g}); {CAUSES}."
        )
    return {"train/sampler_logprob_diff_mean": mean, "train/sampler_logprob_diff_max": largest}
