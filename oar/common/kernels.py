"""Which of torch's kernels a process takes."""

import torch


def choose_kernels() -> None:
    """Those that give the same numbers again; on a GPU, where some have no such form, others warn.

    And none of cuDNN's attention, which plans anew for each length that it has not seen: nearly every completion has another.
    """
    torch.use_deterministic_algorithms(True, warn_only=torch.cuda.is_available())
    torch.backends.cuda.enable_cudnn_sdp(False)
