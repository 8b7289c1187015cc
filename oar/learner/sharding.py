"""How a model that is too large for one device is held: FSDP2 shards, gathered for the time they are used.

Between updates each rank holds its share of the parameters (float32, the master weights), of their gradients and of AdamW's
state: 16 bytes per parameter, divided by the number of ranks. For scoring, credit and the backward passes of a step all weights
are gathered once, in the compute dtype (bfloat16: 2 bytes per parameter on every rank), and gradients are summed into the shards
layer by layer. Estimators call any part of the model as often as a rank's own completions need it, so no forward may wait for
another rank: that is why weights are not gathered layer by layer, which would need the same calls on all ranks.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from oar.common.errors import DataError
from oar.method.forward.packing import AttentionNamed


def shard(model: PreTrainedModel, compute_dtype: torch.dtype) -> None:
    """Spread the parameters over all ranks, a group for each layer; forwards see them in `compute_dtype`.

    Needs a process group, and the same weights on every rank. Gradients are summed over ranks, not averaged: the loss of a rank
    is its part of a sum (`oar.method.losses.loss_scale`).
    """
    mesh = init_device_mesh(model.device.type, (dist.get_world_size(),))
    # Embeddings are in the compute dtype; what a credit signal gives a layer in float32 is meant to be (in_pairs.py).
    policy = MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for module in (*_layers(model), model):
        fully_shard(module, mesh=mesh, reshard_after_forward=False, mp_policy=policy)
    for part in _parts(model):
        part.set_gradient_divide_factor(1.0)
        part.set_force_sum_reduction_for_comms(True)  # gloo knows no other
        part.set_reshard_after_backward(False)
    # FSDP takes the first module that runs for the whole model, and scoring runs parts of it only.
    with torch.no_grad(), gathered(model):
        model(input_ids=torch.zeros(1, 1, dtype=torch.long, device=model.device))


@contextmanager
def gathered(model: PreTrainedModel) -> Iterator[None]:
    """Every rank holds all weights in the block; afterwards its share again. Nothing to do for a model that is not sharded."""
    for part in _parts(model):
        part.unshard()
    try:
        yield
    finally:
        for part in _parts(model):
            part.reshard()


@contextmanager
def recomputed_layers(model: PreTrainedModel, wanted: bool = True) -> Iterator[None]:
    """Forwards in the block keep only the input of each layer; the backward pass runs the layer again (`wanted`)."""

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        # A layer that runs again attends as it did, though the model may attend in another way by then.
        return nullcontext(), AttentionNamed(model, model.config._attn_implementation)

    layers = _layers(model) if wanted else []
    for layer in layers:
        layer.forward = partial(
            checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False, context_fn=contexts
        )
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def _layers(model: PreTrainedModel) -> list[nn.Module]:
    layers = getattr(model.base_model, "layers", None)
    if not isinstance(layers, nn.ModuleList):
        raise DataError(
            "Several ranks, bfloat16 and activation checkpointing need a decoder built like Llama or Qwen (base_model.layers), "
            f"but {type(model).__name__} is not: use learner.ranks=1 in float32 without activation checkpointing."
        )
    return list(layers)


def _parts(model: PreTrainedModel) -> list[FSDPModule]:
    return [module for module in model.modules() if isinstance(module, FSDPModule)]
