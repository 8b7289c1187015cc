"""What a Qwen2 model of given sizes holds and computes: parameters, bytes a token, floating-point operations."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from oar.common.errors import ConfigError

# Names in a config.json, and what they are here.
_KEYS = {
    "num_hidden_layers": "layers",
    "hidden_size": "hidden",
    "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads",
    "intermediate_size": "intermediate",
    "vocab_size": "vocabulary",
    "tie_word_embeddings": "tied",
    "max_position_embeddings": "context",
}


@dataclass(frozen=True, slots=True)
class Architecture:
    """A Qwen2 model: `layers` blocks of width `hidden`, `heads` query heads over `kv_heads` key-value heads.

    tied: input embeddings and head are one matrix; context: tokens of prompt and completion together. Source of the
    structure: transformers' Qwen2ForCausalLM.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    intermediate: int
    vocabulary: int
    tied: bool
    context: int

    def __post_init__(self) -> None:
        sizes = (self.layers, self.hidden, self.heads, self.kv_heads, self.intermediate, self.vocabulary, self.context)
        if min(sizes) < 1 or self.hidden % self.heads or self.heads % self.kv_heads:
            raise ConfigError(
                "A model's sizes must be 1 or more, its width a multiple of its heads and these of its key-value heads, but "
                f"are {self}."
            )

    @classmethod
    def from_config(cls, config: Mapping[str, Any], where: str) -> "Architecture":
        """The sizes that a Hugging Face config.json gives. Raises ConfigError for another kind of model or a missing size."""
        if config.get("model_type") != "qwen2":
            raise ConfigError(
                f"A plan needs a model of type qwen2, but {where} describes {config.get('model_type')!r}: change model.path."
            )
        tied = {"tie_word_embeddings": False}  # transformers' default, left out of some folders
        missing = [key for key in _KEYS if key not in {**tied, **config}]
        if missing:
            raise ConfigError(f"{where} must give {', '.join(missing)}, but does not: it is no config.json of a model.")
        return cls(**{ours: {**tied, **config}[theirs] for theirs, ours in _KEYS.items()})

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.hidden // self.heads

    @property
    def kv_width(self) -> int:
        """Width of the keys of a token in one layer, and of its values."""
        return self.kv_heads * self.head_size

    @property
    def layer_matrices(self) -> int:
        """Parameters of a block that are multiplied with each token: q and o, k and v, gate, up and down."""
        return 2 * self.hidden**2 + 2 * self.hidden * self.kv_width + 3 * self.hidden * self.intermediate

    @property
    def layer_parameters(self) -> int:
        """Parameters of a block: its matrices, the biases of q, k and v, two norms."""
        return self.layer_matrices + self.hidden + 2 * self.kv_width + 2 * self.hidden

    @property
    def embedding_parameters(self) -> int:
        """Parameters of input embeddings and head."""
        return self.vocabulary * self.hidden * (1 if self.tied else 2)

    @property
    def parameters(self) -> int:
        """All of them; the last norm is the one that is in no block."""
        return self.layers * self.layer_parameters + self.embedding_parameters + self.hidden

    def kv_bytes(self, size: int) -> int:
        """Bytes that one token has in a key-value cache of `size` bytes a number: keys and values of every layer."""
        return 2 * self.layers * self.kv_width * size

    def flops(self, tokens: float, pairs: float, read: float) -> float:
        """Floating-point operations of a forward over `tokens` positions, two to a multiplication and addition.

        `pairs` of a query and a key that meet (a product for the score, one for the value, in every layer), and `read`
        positions whose logits are computed. Source: Kaplan et al. 2020 (2001.08361), section 2.1; norms, biases and softmax
        are left out, as there.
        """
        matrices = 2 * self.layers * self.layer_matrices * tokens
        attention = 4 * self.layers * self.hidden * pairs
        return matrices + attention + 2 * self.hidden * self.vocabulary * read

    def layer_activation_bytes(self, size: int) -> int:
        """Bytes that autograd keeps of one token in one block, where numbers have `size` bytes.

        Kept by Qwen2DecoderLayer as transformers 5 runs it with fused attention: the two norms their input in float32, its
        normalised form and their output, one float32 for its scale; attention q, k, v, its output and one float32 a head;
        the feed-forward gate, its activation, up and their product. tests/plan/test_plan.py counts what is really kept. Left out:
        where several completions are packed into a forward, attention's output is kept once more (2 or 3 %).
        """
        norms = 2 * (4 + 2 * size) * self.hidden + 2 * 4
        attention = (2 * self.hidden + 2 * self.kv_width) * size + 4 * self.heads
        return norms + attention + 4 * self.intermediate * size

    def recorded_bytes(self, size: int) -> int:
        """Bytes of one token's queries, keys and values in one block: `oar.method.forward.logprobs.run_forward` keeps
        them for credit."""
        return (self.hidden + 2 * self.kv_width) * size
