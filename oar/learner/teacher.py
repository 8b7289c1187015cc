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


def load_teacher(start: Path, checkpoint: Path | None, dtype: str) -> PreTrainedModel:
    """The starting model, or where a run goes on what its checkpoint holds."""
    teacher = load_policy(start, dtype)
    if checkpoint is not None:
        held = teacher.state_dict()
        for name, weight in load_file(checkpoint / TEACHER_FOLDER / _WEIGHTS).items():
            held[name].copy_(weight)
    return teacher


def save_teacher(teacher: PreTrainedModel, folder: Path) -> None:
    """Write its weights into `folder` of a checkpoint. Raises OSError, SafetensorError."""
    folder.mkdir()
    save_file({name: weight.cpu().contiguous() for name, weight in full_weights(teacher)}, folder / _WEIGHTS)


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
