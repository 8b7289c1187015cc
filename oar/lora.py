"""LoRA by way of peft: low-rank matrices beside frozen weights, which alone are trained (arXiv 2106.09685).

The model stays the Hugging Face model it is, with some of its linear layers replaced, so scoring, probes and estimators run on
it unchanged. The engine gets merged weights, W + (alpha / r) B A, and not the adapter, which vLLM could load as well: then a
server would have to be started for adapters, each version would be another adapter with a name of its own beside the version
that is checked here, its prefix cache would be keyed by it, and its kernels would add B A x to W x in an order of their own,
where one weight matrix goes through all that is there: any sync, any engine, the same parity check. The price is that a push is
as large as one of full training.
"""

from collections.abc import Iterator
from pathlib import Path

import torch
from peft import LoraConfig as PeftConfig
from peft import get_peft_model_state_dict, inject_adapter_in_model, set_peft_model_state_dict
from peft.tuners.lora import Linear
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from oar.config import LoraConfig
from oar.errors import ConfigError
from oar.seeding import generator

ADAPTER_FOLDER = "adapter"  # of its own: beside config.json, transformers would take the folder for an adapter's alone
_ADAPTER = "default"
_WEIGHTS = "adapter_model.safetensors"
_PREFIX = "base_model.model."  # what peft puts before the names of a model that it wraps


def add_adapter(model: PreTrainedModel, cfg: LoraConfig, seed: int) -> None:
    """Freeze the model and put an adapter beside each layer that `cfg.targets` names; it changes nothing until trained.

    A is drawn as peft and the paper do it (Kaiming uniform), from `seed` alone; B is 0. Raises ConfigError for a target that no
    linear layer of the decoder is called.
    """
    # Without the head: its weight is read block by block, past any adapter (oar/projection.py).
    layers = model.base_model.named_modules()
    linear = {name.rsplit(".", 1)[-1] for name, module in layers if isinstance(module, nn.Linear)}
    if wrong := sorted(set(cfg.targets) - linear):
        known = ", ".join(sorted(linear))
        raise ConfigError(f"model.lora.targets must name linear layers of the model ({known}), but names {wrong[0]!r}.")
    settings = PeftConfig(r=cfg.r, lora_alpha=cfg.alpha, target_modules=list(cfg.targets), task_type="CAUSAL_LM")
    with torch.random.fork_rng():
        inject_adapter_in_model(settings, model, _ADAPTER)
    with torch.no_grad():
        for name, layer in _adapted(model):
            weight = layer.get_parameter(f"lora_A.{_ADAPTER}.weight")
            drawn = torch.empty(weight.shape)
            weight.copy_(nn.init.kaiming_uniform_(drawn, a=5**0.5, generator=generator(seed, "lora", name)))
    model.eval()


def merged_weights(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """Names and weights of the model as it would be without an adapter, whose product is added in; one at a time."""
    layers = dict(_adapted(model))
    for name, weight in model.state_dict().items():
        owner, _, last = name.rpartition(".base_layer.")
        if owner in layers and last == "weight":
            yield f"{owner}.weight", weight + layers[owner].get_delta_weight(_ADAPTER).detach()
        elif owner in layers:
            yield f"{owner}.{last}", weight
        elif ".lora_" not in name:
            yield name, weight


def has_adapter(model: PreTrainedModel) -> bool:
    """Whether `add_adapter` has been here."""
    return next(_adapted(model), None) is not None


def save_adapter(model: PreTrainedModel, folder: Path) -> None:
    """Write the adapter as peft does, so that `PeftModel.from_pretrained(starting model, folder)` reads it."""
    folder.mkdir()
    state = get_peft_model_state_dict(model, adapter_name=_ADAPTER, save_embedding_layers=False)
    save_file({_PREFIX + name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}, folder / _WEIGHTS)
    model.peft_config[_ADAPTER].save_pretrained(folder)


def load_adapter(model: PreTrainedModel, folder: Path) -> None:
    """Put the weights of `save_adapter` into the adapter that `add_adapter` made."""
    state = {name.removeprefix(_PREFIX): tensor for name, tensor in load_file(folder / _WEIGHTS).items()}
    set_peft_model_state_dict(model, state, adapter_name=_ADAPTER)


def _adapted(model: PreTrainedModel) -> Iterator[tuple[str, Linear]]:
    for name, module in model.named_modules():
        if isinstance(module, Linear):
            yield name, module
