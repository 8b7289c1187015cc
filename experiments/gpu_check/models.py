"""Random models: of the sizes of published ones, or of the same shape and tiny."""

import torch
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from experiments.gpu_check.device import DEVICE
from oar.plan import Architecture
from oar.tasks.words import build_tokenizer

TINY = Architecture(
    layers=2,
    hidden=64,
    heads=4,
    kv_heads=2,
    intermediate=96,
    vocabulary=len(build_tokenizer()),
    tied=False,
    context=1024,
)


def cast(model: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    """The model with its weights in `dtype`; rotary frequencies stay in float32, as in the engine and under FSDP2."""
    for weight in model.parameters():
        weight.data = weight.data.to(dtype)
    return model


def random_model(
    sizes: Architecture, *, spread: float = 0.02, seed: int = 0, device: torch.device = DEVICE
) -> Qwen2ForCausalLM:
    """A Qwen2 in float32, made where it will be used; `spread`: the standard deviation of its weights (Qwen2.5: 0.02)."""
    tokenizer = build_tokenizer()
    config = Qwen2Config(
        vocab_size=sizes.vocabulary,
        hidden_size=sizes.hidden,
        intermediate_size=sizes.intermediate,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.kv_heads,
        max_position_embeddings=sizes.context,
        initializer_range=spread,
        tie_word_embeddings=sizes.tied,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    torch.manual_seed(seed)
    with device:
        model = Qwen2ForCausalLM(config)
    # Away from the uniform distribution and from zero: else half of what is compared is 0 on every device.
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("_proj.bias"):
                weight.normal_(0, spread)
    return model.eval()
