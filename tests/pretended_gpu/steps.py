"""Whole training steps on a pretended GPU: a real learner on completions that need no engine."""

from pathlib import Path

import torch

from experiments.gpu_check.settings import METHODS, OF_SHEETS, read
from oar.learner.distributed import ALONE
from oar.tasks.sheets.tokenizer import build_tokenizer as sheets_tokenizer
from tests.config.test_config import CONF
from tests.learner.on_ranks import config, learner_of, start_model
from tests.pretended_gpu.modes import PretendedGpu, pretended_gpu


def choices(group: str) -> list[str]:
    """All that a config group has to choose from."""
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


__all__ = ["METHODS", "OF_SHEETS", "SMALL", "choices", "in_many_forwards", "starts", "trained"]


def in_many_forwards(method: str) -> list[str]:
    """The method with a bound on what it recomputes at once that takes several forwards even here."""
    estimator = read("method", method)["estimator"]
    bounded = {"": estimator, "of.": estimator.get("of", {})}
    changed = [of for of, one in bounded.items() if "max_tokens_per_forward" in one]
    own = ["data=sheets"] if method in OF_SHEETS else []
    own += ["method.estimator.branching=[2,2]"] if method == "spo_tree" else []  # four completions, as of all here
    return [f"method={method}", *own, *(f"method.estimator.{of}max_tokens_per_forward=256" for of in changed)]


SMALL = ["learner.batch_size=12", "learner.steps=2"]


def starts(folder: Path) -> dict[bool, Path]:
    """Folders of the models to start from, by whether they know the words of sheets."""
    return {True: start_model(folder / "sheets", sheets_tokenizer()), False: start_model(folder)}


def trained(start: Path, *overrides: str) -> PretendedGpu:
    """Two training steps from the model in `start`, lt_logits the probe of the first; what was counted in the second.

    Raises MixedDevicesError where a GPU would have refused something.
    """
    with pretended_gpu() as gpu:
        learner = learner_of(config(*SMALL, *overrides), start, ALONE)
        assert learner.model.device == torch.device("cuda:0")
        learner.training_step()
        gpu.forget()
        learner.training_step()
    return gpu
