"""LoRA by way of peft: low-rank matrices beside frozen weights, which alone are trained (arXiv 2106.09685).

The model stays the Hugging Face model it is, with some of its linear layers replaced, so scoring, probes and estimators run on
it unchanged. The engine gets merged weights, W + (alpha / r) B A, and not the adapter, which vLLM could load as well: then a
server would have to be started for adapters, each version would be another adapter with a name of its own beside the version
that is checked here, its prefix cache would be keyed by it, and its kernels would add B A x to W x in an order of their own,
where one weight matrix goes through all that is there: any sync, any engine, the same parity check. The price is that a push is
as large as one of full training.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from peft import LoraConfig as PeftConfig
from peft import inject_adapter_in_model
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from oar.common.errors import ConfigError
from oar.common.seeding import generator
from oar.config import LoraConfig
from oar.model.load import load_policy
from oar.model.parameters import ADAPTER, whole

ADAPTER_FOLDER = "adapter"  # of its own: beside config.json, transformers would take the folder for an adapter's alone
_WEIGHTS = "adapter_model.safetensors"


def load_trained(
    lora: LoraConfig | None, start: Path, checkpoint: Path | None, dtype: str, seed: int
) -> PreTrainedModel:
    """What a run trains: the starting model, or what `checkpoint` made of it.

    With an adapter the frozen weights are always those of `start`: merged ones would not give the same bytes again.
    """
    if lora is None:
        return load_policy(checkpoint or start, dtype)
    model = load_policy(start, dtype)
    add_adapter(model, lora, seed)
    if checkpoint is not None:
        load_adapter(model, checkpoint / ADAPTER_FOLDER)
    return model


def add_adapter(model: PreTrainedModel, cfg: LoraConfig, seed: int) -> None:
    """Freeze the model and put an adapter beside each layer that `cfg.targets` names; it changes nothing until trained.

    A is drawn as peft and the paper do it (Kaiming uniform), from `seed` alone; B is 0. Raises ConfigError for a target that no
    linear layer of the decoder is called.
    """
    # Without the head: its weight is read block by block, past any adapter (oar/method/forward/projection.py).
    layers = model.base_model.named_modules()
    linear = {name.rsplit(".", 1)[-1] for name, module in layers if isinstance(module, nn.Linear)}
    if wrong := sorted(set(cfg.targets) - linear):
        known = ", ".join(sorted(linear))
        raise ConfigError(f"model.lora.targets must name linear layers of the model ({known}), but names {wrong[0]!r}.")
    settings = PeftConfig(r=cfg.r, lora_alpha=cfg.alpha, target_modules=list(cfg.targets), task_type="CAUSAL_LM")
    with torch.random.fork_rng(devices=[]):  # of the CPU alone: every rank sees all GPUs of a machine, and uses one
        inject_adapter_in_model(settings, model, ADAPTER)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if ".lora_A." in name:
                drawn = torch.empty(weight.shape)
                weight.copy_(nn.init.kaiming_uniform_(drawn, a=5**0.5, generator=generator(seed, "lora", name)))
    model.eval()


def adapter_weights(model: PreTrainedModel) -> dict[str, Tensor]:
    """The adapter's own weights by name, gathered on every rank; all have to take part. Empty for a model without one."""
    return {name: whole(weight.detach()) for name, weight in model.named_parameters() if ".lora_" in name}


def save_adapter(model: PreTrainedModel, weights: Mapping[str, Tensor], folder: Path) -> None:
    """Write `adapter_weights` as peft does, so that `PeftModel.from_pretrained(starting model, folder)` reads them."""
    folder.mkdir()
    save_file({_peft_name(name): weight.cpu().contiguous() for name, weight in weights.items()}, folder / _WEIGHTS)
    model.peft_config[ADAPTER].save_pretrained(folder)


def load_adapter(model: PreTrainedModel, folder: Path) -> None:
    """Put the weights of `save_adapter` into the adapter that `add_adapter` made."""
    saved = load_file(folder / _WEIGHTS)
    for name, weight in model.named_parameters():
        if ".lora_" in name:
            weight.data.copy_(saved[_peft_name(name)])


def _peft_name(name: str) -> str:
    """peft puts its own two wrappers before the names of a model, and leaves the adapter's out."""
    return f"base_model.model.{name.replace(f'.{ADAPTER}.', '.')}"
