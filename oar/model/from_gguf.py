"""A quantised GGUF file as an ordinary Hugging Face folder: float32 safetensors, with a head of its own."""

import copy
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedModel
from transformers.utils.logging import disable_progress_bar


def convert(file: Path, folder: Path) -> None:
    """Write config, weights and tokenizer of the GGUF `file` into `folder`. transformers reads it with the package gguf."""
    disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    model = untied(AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32))
    model.config.name_or_path = ""  # else what the file calls itself
    tokenizer.model_max_length = model.config.max_position_embeddings
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def untied(model: PreTrainedModel) -> PreTrainedModel:
    """A copy that is not quantised and whose output matrix is its own: vLLM on CPU does not refresh a tied one.

    transformers refuses to save what it read from a GGUF file, which is why there has to be a copy.
    """
    config = copy.deepcopy(model.config)
    config.tie_word_embeddings = False
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    copied = type(model)(config)
    copied.load_state_dict(model.state_dict())  # which names a tied matrix twice
    return copied.eval()
