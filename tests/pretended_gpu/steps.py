"""Whole training steps on a pretended GPU: a real learner on completions that need no engine."""

from pathlib import Path

import torch

from oar.learner.distributed import ALONE
from tests.learner.on_ranks import config, learner_of
from tests.pretended_gpu.modes import PretendedGpu, pretended_gpu
from tests.test_config import CONF


def choices(group: str) -> list[str]:
    """All that a config group has to choose from."""
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


METHODS = choices("method")
SMALL = ["learner.batch_size=12", "learner.steps=2"]


def trained(start: Path, *overrides: str) -> PretendedGpu:
    """What two training steps from the model in `start` did: lt_logits is the probe of the first, as_mean of the second.

    Raises MixedDevicesError where a GPU would have refused something.
    """
    with pretended_gpu() as gpu:
        learner = learner_of(config(*SMALL, *overrides), start, ALONE)
        assert learner.model.device == torch.device("cuda:0")
        while learner.step < 2:
            learner.training_step()
    return gpu
