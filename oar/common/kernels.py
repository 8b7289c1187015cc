"""Which of torch's kernels a process takes."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def choose_kernels() -> None:
    """Those that give the same numbers again; on a GPU, where some have no such form, others warn.

    And none of cuDNN's attention: it plans anew for each length that it has not seen, which takes longer than the attention
    of a completion (results/gpu_check).
    """
    torch.use_deterministic_algorithms(True, warn_only=torch.cuda.is_available())
    torch.backends.cuda.enable_cudnn_sdp(False)


@contextmanager
def any_kernels() -> Iterator[None]:
    """In the block all may be taken: for what gives the same numbers in any order, where a deterministic form is the slower."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(False)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
