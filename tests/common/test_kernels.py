"""Which of torch's kernels a process takes."""

import pytest
import torch

from oar.common.kernels import choose_kernels


@pytest.fixture(autouse=True)
def as_before():
    before = torch.are_deterministic_algorithms_enabled(), torch.backends.cuda.cudnn_sdp_enabled()
    yield
    torch.use_deterministic_algorithms(before[0])
    torch.backends.cuda.enable_cudnn_sdp(before[1])


def test_a_run_takes_kernels_that_give_the_same_numbers_again():
    choose_kernels()
    assert torch.are_deterministic_algorithms_enabled()
    # Without a GPU what has no such kernel is an error; with one it warns.
    assert torch.is_deterministic_algorithms_warn_only_enabled() == torch.cuda.is_available()
    assert not torch.backends.cuda.cudnn_sdp_enabled()
