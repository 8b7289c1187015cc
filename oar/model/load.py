"""Models of Hugging Face folders: a policy, its tokenizer, and a reward model that scores what it writes."""

import math
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils.logging import disable_progress_bar

from oar.common.errors import DataError


def weight_files(folder: Path) -> list[Path]:
    """The files that hold the weights of a model's folder, in order. Raises DataError where they are not in safetensors."""
    found = sorted(folder.glob("model*.safetensors"))
    if not found:
        pickled = sorted(path.name for ending in ("bin", "pt", "pth", "ckpt") for path in folder.glob(f"*.{ending}"))
        came = f"but holds {pickled[0]}, a pickle, which can run code when it is read" if pickled else "but holds none"
        raise DataError(
            f"{folder} must hold its weights as model*.safetensors, {came}: convert the model with save_pretrained."
        )
    return found


def weights_size(folder: Path, dtype: str) -> int:
    """Bytes of the weights in a model's folder once they are of `dtype`; only the files' headers are read.

    Raises DataError for a file that is cut off or no safetensors.
    """
    numbers = 0
    for file in weight_files(folder):
        try:
            with safe_open(file, "pt") as opened:
                numbers += sum(math.prod(opened.get_slice(name).get_shape()) for name in opened.keys())  # noqa: SIM118
        except SafetensorError as error:
            raise DataError(f"{file} cannot be read ({error}): copy or download it again.") from error
    dtype_of_all: torch.dtype = getattr(torch, dtype)
    return numbers * dtype_of_all.itemsize


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The folder's tokenizer. Raises DataError where there is none."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise DataError(f"{folder} must hold a tokenizer, but: {str(error).splitlines()[0]}") from error
    assert isinstance(tokenizer, PreTrainedTokenizerBase)
    return tokenizer


def load_policy(folder: Path, dtype: str) -> PreTrainedModel:
    """The folder's model on this machine's device, dropout off. Raises DataError where there is none, or not all of it."""
    return _loaded(AutoModelForCausalLM, folder, dtype)


def load_scorer(path: str | None, tokenizer: PreTrainedTokenizerBase, dtype: str) -> PreTrainedModel | None:
    """The reward model in the folder `path`, frozen, beside a policy with this tokenizer; None where there is no path.

    Raises DataError as `refuse_as_scorer`, and where its score is not a linear head's on a decoder.
    """
    if path is None:
        return None
    refuse_as_scorer(Path(path), tokenizer)
    model = _loaded(AutoModelForSequenceClassification, Path(path), dtype)
    if not isinstance(getattr(model, "score", None), nn.Linear):
        raise DataError(
            f"probe.path must hold a decoder with a linear head `score`, as Qwen2ForSequenceClassification is, but {path} holds "
            f"{type(model).__name__}: take another reward model."
        )
    return model.requires_grad_(False)


def refuse_as_scorer(folder: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raises DataError where the folder holds no model with one score, or one with another tokenizer: it reads the policy's ids.

    No weights are read.
    """
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise DataError(f"probe.path must be a reward model's folder, but: {str(error).splitlines()[0]}") from error
    made = ", ".join(config.architectures or ["no model"])
    if not made.endswith("ForSequenceClassification") or config.num_labels != 1:
        raise DataError(
            f"probe.path must hold a model for sequence classification with one label, but {folder} holds {made} with "
            f"{config.num_labels}: train one with make reward-model, or take another."
        )
    own = load_tokenizer(folder).get_vocab()
    other = [token for token, number in tokenizer.get_vocab().items() if own.get(token) != number]
    if other:
        raise DataError(
            f"The reward model in {folder} must have the policy's tokenizer, but {len(other)} of the policy's tokens, "
            f"{other[0]!r} among them, have another id or none there: take one with the same tokenizer."
        )


def _loaded(auto: Any, folder: Path, dtype: str) -> PreTrainedModel:
    """A model of the folder on this machine's device, dropout off."""
    disable_progress_bar()
    weight_files(folder)
    try:
        model, found = auto.from_pretrained(
            folder,
            dtype=getattr(torch, dtype),
            attn_implementation="sdpa",
            use_safetensors=True,
            trust_remote_code=False,  # None, the default, would ask on the terminal
            ignore_mismatched_sizes=True,  # told below, in a sentence
            output_loading_info=True,
        )
    except (OSError, ValueError, SafetensorError) as error:
        raise DataError(f"{folder} must hold a model, but: {str(error).splitlines()[0]}") from error
    # transformers draws these at random, and only warns.
    if drawn := sorted({*found["missing_keys"], *(name for name, *_ in found["mismatched_keys"])}):
        raise DataError(
            f"{folder} must hold all weights of a {type(model).__name__} in the sizes of its config.json, but {len(drawn)} are "
            f"missing or of another size, {drawn[0]} among them: take the folder of such a model, or copy it again."
        )
    assert isinstance(model, PreTrainedModel)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return model.eval().to(device)
