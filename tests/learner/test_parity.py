"""The parity watch: what it reports, when it stops a run, and that NaN never passes."""

import pytest
import torch

from oar.common.errors import SyncError
from oar.learner.parity import parity_metrics

MASK = torch.tensor([[True, True, False]])


def test_by_hand_and_outside_the_mask_does_not_count():
    metrics = parity_metrics(torch.tensor([[-1.0, -2.0, 9.0]]), torch.tensor([[-1.5, -2.1, 0.0]]), MASK, bound=1.0)
    assert metrics["train/sampler_logprob_diff_mean"] == pytest.approx(0.3)
    assert metrics["train/sampler_logprob_diff_max"] == pytest.approx(0.5)


@pytest.mark.parametrize("sampler", [[-1.0, -2.0, 0.0], [float("nan"), -2.0, 0.0]])
def test_too_far_apart_names_likely_causes(sampler):
    with pytest.raises(SyncError, match="tied embeddings"):
        parity_metrics(torch.tensor([sampler]), torch.tensor([[-1.5, -2.1, 0.0]]), MASK, bound=0.2)
