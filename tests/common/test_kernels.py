"""Which of torch's kernels a process takes, and that a block which may take any leaves the choice as it was."""

import pytest
import torch

from oar.common.kernels import any_kernels, choose_kernels


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


@pytest.mark.parametrize("before", [(False, False), (True, False), (True, True)])
def test_after_a_block_of_any_kernels_the_choice_is_as_before(before: tuple[bool, bool]):
    def now() -> tuple[bool, bool]:
        return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()

    torch.use_deterministic_algorithms(before[0], warn_only=before[1])
    with any_kernels():
        assert now()[0] is False
    assert now() == before
    with pytest.raises(ValueError, match="lost"), any_kernels():
        raise ValueError("lost")
    assert now() == before
