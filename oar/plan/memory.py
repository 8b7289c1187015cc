"""Memory of one device: what the learner's rank and the engine on it hold at the worst moment of a step."""

from dataclasses import dataclass

from oar.config import TrainConfig
from oar.method.forward.projection import GPU_BLOCK, KEPT
from oar.method.importance import (
    GradientImportance,
    ImportanceEstimator,
    InvertedImportance,
    PerturbationImportance,
    ShuffledImportance,
)
from oar.plan.assumptions import Assumptions
from oar.plan.importance import Lengths, recomputed
from oar.plan.model import Architecture

GIB = 2**30
FLOAT32 = 4
NUMBER_BYTES = {"float32": FLOAT32, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes by what they are for, of one rank of the learner and of one engine; both add up where they share a device.

    device: bytes of the fullest device; kv_token: bytes of a token in the engine's cache; kv_sequences_full and
    kv_sequences_mean: how many sequences of rollout.max_model_len, and of mean length, its cache holds at a time.
    """

    learner: dict[str, float]
    engine: dict[str, float]
    shared: bool
    device: float
    kv_token: int
    kv_sequences_full: int
    kv_sequences_mean: int


def largest_micro_batch(cfg: TrainConfig, assume: Assumptions) -> int:
    """Tokens of learner.micro_batch_tokens, or of the longest prompt with a completion cut at rollout.max_new_tokens."""
    return max(cfg.learner.micro_batch_tokens, assume.longest_prompt + cfg.rollout.max_new_tokens)


def memory_of(cfg: TrainConfig, model: Architecture, assume: Assumptions, estimator: ImportanceEstimator) -> Memory:
    """The largest micro-batch is planned for.

    Parameters, gradients and the two moments of AdamW are float32, 16 bytes a parameter, in equal parts on the ranks (ZeRO,
    Rajbhandari et al. 2020, 1910.02054, section 3.1). Where they are sharded or cast (oar/learner/sharding.py), a rank also
    has all weights in `learner.compute_dtype` for a whole step, and the gradients of embeddings and head, the largest group,
    once in that and once in float32 while they are summed.
    """
    size, engine_size = NUMBER_BYTES[cfg.learner.compute_dtype], NUMBER_BYTES[cfg.model.dtype]
    ranks, n = cfg.learner.ranks, model.parameters
    tokens = largest_micro_batch(cfg, assume)
    part = FLOAT32 * n / ranks
    learner = {"weights": part, "gradients": part, "optimizer": 2 * part}
    if cfg.learner.kl_coef > 0:
        learner["reference"] = float(size * n)
    if ranks > 1 or size != FLOAT32:
        learner["gathered_weights"] = float(size * n)
        learner["summed_gradients"] = float((size + FLOAT32) * model.embedding_parameters)
    learner["activations"] = _activations(model, size, tokens, cfg.learner.activation_checkpointing)
    # Of logits (oar/method/forward/projection.py): a block as computed and twice in float32, and those that stay.
    logits = tokens * model.vocabulary
    learner["logits"] = float((size + 2 * FLOAT32) * min(logits, GPU_BLOCK) + FLOAT32 * min(logits, KEPT))
    learner["credit_signal"] = _signal(cfg, model, assume, estimator)
    overhead, cache = assume.overhead_gib * GIB, cfg.rollout.kv_cache_gib * GIB
    learner["overhead"] = overhead
    engine = {"weights": float(engine_size * n), "kv_cache": cache, "overhead": overhead}
    per_token = model.kv_bytes(engine_size)
    sums = (sum(learner.values()), sum(engine.values()))
    shared = ranks + assume.engines > assume.devices
    return Memory(
        learner=learner,
        engine=engine,
        shared=shared,
        device=sum(sums) if shared else max(sums),
        kv_token=per_token,
        kv_sequences_full=int(cache // (per_token * cfg.rollout.max_model_len)),
        kv_sequences_mean=int(cache // (per_token * (assume.prompt_tokens + assume.completion_tokens))),
    )


def _activations(model: Architecture, size: int, tokens: float, checkpointing: bool) -> float:
    """Bytes that autograd saves of `tokens` positions; with checkpointing each block's input, and one block in full.

    What `run_forward` records of attention is part of what autograd saves anyway; with checkpointing it comes on top.
    """
    block = model.layer_activation_bytes(size)
    if not checkpointing:
        return float(tokens * model.layers * block)
    return float(tokens * (block + model.layers * (model.hidden * size + model.recorded_bytes(size))))


def _signal(cfg: TrainConfig, model: Architecture, assume: Assumptions, estimator: ImportanceEstimator) -> float:
    """Bytes a credit signal holds at most beside the update's own forward.

    Counterfactuals and OAR-G go through as many completions at a time as have `max_tokens_per_forward`, or through one, and
    hold a padded copy of their clean keys and values. Counterfactuals hold the logits of one forward.
    """
    if isinstance(estimator, ShuffledImportance | InvertedImportance):
        return _signal(cfg, model, assume, estimator.of)
    if not isinstance(estimator, GradientImportance | PerturbationImportance):
        return 0.0
    size, longest, most = (
        NUMBER_BYTES[cfg.learner.compute_dtype],
        cfg.rollout.max_new_tokens,
        estimator.max_tokens_per_forward,
    )
    shown = min(largest_micro_batch(cfg, assume), max(most, assume.longest_prompt + longest))
    if isinstance(estimator, GradientImportance):
        again = min(shown, max(most, longest))
        return _noisy_graph(model, size, shown, again, checkpointing=cfg.learner.activation_checkpointing)
    marker, answer = assume.marker_tokens, assume.answer_tokens
    lengths = Lengths(assume.longest_prompt, longest - marker - answer - 1, marker, answer)
    together = max(1.0, most / recomputed(estimator, lengths))
    # Logits as computed and in float32, and four more of the size of one distribution for the divergence.
    logits = together * model.vocabulary * (answer * (size + FLOAT32) + 4 * FLOAT32)
    return shown * model.kv_bytes(size) + logits


def _noisy_graph(model: Architecture, size: int, shown: int, again: int, *, checkpointing: bool) -> float:
    """Bytes of OAR-G's clean keys of `shown` tokens and of its graph over the `again` of them that run again.

    Each block copies the keys and saves its activations; with checkpointing one block does at a time, and all save their
    input. In half precision two forwards run side by side in float32 (oar/method/importance/in_pairs.py).
    """
    copies, wide = (1, size) if size >= FLOAT32 else (2, FLOAT32)
    keys = float(shown * model.kv_bytes(wide))
    block = keys / model.layers + again * model.layer_activation_bytes(wide)
    graph = block + model.layers * again * model.hidden * wide if checkpointing else model.layers * block
    return keys + copies * graph
