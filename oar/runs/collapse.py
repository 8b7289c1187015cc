"""When a policy's entropy has collapsed; the bounds are assumptions of ours."""

import numpy as np
from numpy.typing import NDArray

COLLAPSE_WINDOW = 9  # steps of the running mean of the entropy
COLLAPSE_SHARE = 0.2  # an entropy below a fifth of what it was at the start has collapsed


def collapse_step(entropy: NDArray[np.float64]) -> int | None:
    """The step at which the policy's entropy, (steps,) from step 1 on, has collapsed; None where it has not.

    It is the last of the first COLLAPSE_WINDOW steps in a row whose mean lies below COLLAPSE_SHARE of the mean at the start.
    """
    if len(entropy) < COLLAPSE_WINDOW:
        return None
    means = np.convolve(entropy, np.full(COLLAPSE_WINDOW, 1 / COLLAPSE_WINDOW), mode="valid")
    (below,) = np.nonzero(means < COLLAPSE_SHARE * means[0])
    return int(below[0]) + COLLAPSE_WINDOW if len(below) else None
