"""What a Qwen2 or Llama model of given sizes holds and computes: parameters, bytes per token, floating-point operations."""

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

from oar.common.errors import ConfigError

_CONFIG_KEYS = {  # names here, and in a config.json
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "intermediate": "intermediate_size",
    "vocabulary": "vocab_size",
    "tied": "tie_word_embeddings",
    "context": "max_position_embeddings",
}


@dataclass(frozen=True, slots=True)
class Architecture:
    """A Qwen2 or Llama model: `layers` blocks of width `hidden`, `heads` query heads over `kv_heads` key-value heads.

    tied: input embeddings and head are one matrix; context: tokens of prompt and completion together; biased: queries, keys and
    values have biases, as Qwen2's do and Llama's do not. Source of the structure: transformers' Qwen2ForCausalLM.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    intermediate: int
    vocabulary: int
    tied: bool
    context: int
    biased: bool = True

    def __post_init__(self) -> None:
        sizes = [size for size in astuple(self) if not isinstance(size, bool)]
        if min(sizes) < 1 or self.hidden % self.heads or self.heads % self.kv_heads:
            raise ConfigError(
                "A model's sizes must be 1 or more, its width a multiple of its heads and these of its key-value heads, but "
                f"are {self}."
            )

    @classmethod
    def from_config(cls, config: Mapping[str, Any], where: str) -> "Architecture":
        """The sizes that a Hugging Face config.json gives. Raises ConfigError for another kind of model or a missing size."""
        kind = config.get("model_type")
        if kind not in ("qwen2", "llama") or config.get("attention_bias"):
            with_bias = " with biases everywhere" if config.get("attention_bias") else ""
            raise ConfigError(
                f"A plan needs models of type qwen2 or llama, but {where} describes {kind!r}{with_bias}: choose another."
            )
        sizes = {"tie_word_embeddings": False, **config}  # transformers' default, left out of some folders
        if missing := [key for key in _CONFIG_KEYS.values() if key not in sizes]:
            raise ConfigError(f"{where} must give {', '.join(missing)}, but does not: it is no config.json of a model.")
        return cls(**{ours: sizes[theirs] for ours, theirs in _CONFIG_KEYS.items()}, biased=kind == "qwen2")

    def config(self) -> dict[str, Any]:
        """The same in the words of a Hugging Face config.json."""
        return {theirs: getattr(self, ours) for ours, theirs in _CONFIG_KEYS.items()}

    @property
    def kv_width(self) -> int:
        """Width of the keys of a token in one layer, and of its values."""
        return self.kv_heads * self.hidden // self.heads

    @property
    def layer_shapes(self) -> dict[str, tuple[int, int]]:
        """The matrices of a block by transformers' names: the widths that they map from and to."""
        hidden, kv, wide = self.hidden, self.kv_width, self.intermediate
        attention = {
            "q_proj": (hidden, hidden),
            "k_proj": (hidden, kv),
            "v_proj": (hidden, kv),
            "o_proj": (hidden, hidden),
        }
        return attention | {"gate_proj": (hidden, wide), "up_proj": (hidden, wide), "down_proj": (wide, hidden)}

    @property
    def layer_matrices(self) -> int:
        """Parameters of a block that are multiplied with each token."""
        return sum(given * made for given, made in self.layer_shapes.values())

    def adapter_parameters(self, rank: int, targets: Sequence[str]) -> int:
        """Of the two low-rank matrices beside each layer of that name. Raises ConfigError for a name that no layer has."""
        shapes = self.layer_shapes
        if unknown := [target for target in targets if target not in shapes]:
            raise ConfigError(f"model.lora.targets must name some of {', '.join(shapes)}, but names {unknown[0]!r}.")
        return self.layers * rank * sum(sum(shapes[target]) for target in targets)

    @property
    def embedding_parameters(self) -> int:
        """Parameters of input embeddings and head."""
        return self.vocabulary * self.hidden * (1 if self.tied else 2)

    @property
    def parameters(self) -> int:
        """Matrices, biases of q, k and v if there are any, two norms a block and one behind the last, embeddings."""
        layer = self.layer_matrices + (self.hidden + 2 * self.kv_width) * self.biased + 2 * self.hidden
        return self.layers * layer + self.embedding_parameters + self.hidden

    def kv_bytes(self, size: int) -> int:
        """Bytes of one token in a key-value cache of `size` bytes a number: keys and values of every layer."""
        return 2 * self.layers * self.kv_width * size

    def layer_activation_bytes(self, size: int) -> int:
        """Bytes that autograd saves of one token in one block, where numbers have `size` bytes.

        Saved by Qwen2DecoderLayer as transformers 5 runs it with fused attention: the two norms their input in float32, its
        normalised form and their output, one float32 for its scale; attention q, k, v, its output and one float32 a head;
        the feed-forward gate, its activation, up and their product. tests/plan/test_plan.py counts what is really saved.
        Left out: where several completions are packed into a forward, attention's output is saved once more (2 or 3 %).
        """
        norms = 2 * (4 + 2 * size) * self.hidden + 2 * 4
        attention = (2 * self.hidden + 2 * self.kv_width) * size + 4 * self.heads
        return norms + attention + 4 * self.intermediate * size

    def recorded_bytes(self, size: int) -> int:
        """Bytes of one token's queries, keys and values in one block, which `run_forward` records for credit."""
        return (self.hidden + 2 * self.kv_width) * size
