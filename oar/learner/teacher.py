"""A teacher that follows the policy at a distance: a copy renewed now and then, or a moving average (`method.teacher`).

Every rank holds it whole, in the compute dtype, as it does the reference of a KL term.
"""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from oar.config import TeacherConfig
from oar.model.load import load_policy
from oar.model.parameters import full_weights

TEACHER_FOLDER = "teacher"  # of a checkpoint; of its own, as the optimizer's is
_WEIGHTS = "model.safetensors"


def load_beside(start: Path, folder: Path | None, dtype: str) -> PreTrainedModel:
    """A model beside the policy: the starting one, or what `save_beside` wrote into `folder`."""
    model = load_policy(start, dtype)
    if folder is not None:
        held = model.state_dict()
        for name, weight in load_file(folder / _WEIGHTS).items():
            held[name].copy_(weight)
    return model


def save_beside(model: PreTrainedModel, folder: Path) -> None:
    """Write the weights of a model beside the policy into `folder` of a checkpoint. Raises OSError, SafetensorError."""
    folder.mkdir()
    save_file({name: weight.cpu().contiguous() for name, weight in full_weights(model)}, folder / _WEIGHTS)


@torch.no_grad()
def follow(teacher: PreTrainedModel, policy: PreTrainedModel, cfg: TeacherConfig, step: int) -> None:
    """After training step `step` (from 1): teacher <- (1 - rate) teacher + rate policy; all ranks call it together.

    The rate of a synced one is 1 in every `cfg.every`-th step and 0 in others.
    """
    rate = cfg.rate if cfg.kind == "averaged" else float(step % cfg.every == 0)
    if rate == 0:
        return
    held = teacher.state_dict()
    for name, weight in full_weights(policy):
        held[name].lerp_(weight.to(held[name].dtype), rate)
