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


def memory_of(cfg: TrainConfig, model: Architecture, assume: Assumptions, estimator: ImportanceEstimator) -> Memory:
    """The worst micro-batch is planned for: the longest prompts, every completion cut at rollout.max_new_tokens.

    A micro-batch holds learner.micro_batch_tokens, or one completion that is longer. Parameters,
    gradients and the two moments of AdamW are float32, 16 bytes a parameter, in equal parts on the ranks (ZeRO, Rajbhandari
    et al. 2020, 1910.02054, section 3.1). Where they are sharded or cast (oar/learner/sharding.py), a rank also has all
    weights in `learner.compute_dtype` for a whole step, and the gradients of embeddings and head, the largest group, once in
    that and once in float32 while they are summed.
    """
    size, engine_size = NUMBER_BYTES[cfg.learner.compute_dtype], NUMBER_BYTES[cfg.model.dtype]
    ranks, n = cfg.learner.ranks, model.parameters
    rollout, checkpointing = cfg.rollout, cfg.learner.activation_checkpointing
    tokens = max(cfg.learner.micro_batch_tokens, assume.longest_prompt + rollout.max_new_tokens)
    learner = {
        "weights": FLOAT32 * n / ranks,
        "gradients": FLOAT32 * n / ranks,
        "optimizer": 2 * FLOAT32 * n / ranks,
    }
    if cfg.learner.kl_coef > 0:
        learner["reference"] = float(size * n)
    if ranks > 1 or size != FLOAT32:
        learner["gathered_weights"] = float(size * n)
        learner["summed_gradients"] = float((size + FLOAT32) * model.embedding_parameters)
    learner["activations"] = _activations(model, size, tokens, checkpointing)
    learner["logits"] = _logits(model, size, tokens)
    learner["credit_signal"] = _signal(
        estimator, model, assume, size, tokens, rollout.max_new_tokens, checkpointing=checkpointing
    )
    learner["overhead"] = assume.overhead_gib * GIB
    cache = rollout.kv_cache_gib * GIB
    engine = {"weights": float(engine_size * n), "kv_cache": cache, "overhead": assume.overhead_gib * GIB}
    per_token = model.kv_bytes(engine_size)
    held = (sum(learner.values()), sum(engine.values()))
    shared = ranks + assume.engines > assume.devices
    return Memory(
        learner=learner,
        engine=engine,
        shared=shared,
        device=sum(held) if shared else max(held),
        kv_token=per_token,
        kv_sequences_full=int(cache // (per_token * rollout.max_model_len)),
        kv_sequences_mean=int(cache // (per_token * (assume.prompt_tokens + assume.completion_tokens))),
    )


def _activations(model: Architecture, size: int, tokens: float, checkpointing: bool) -> float:
    """Bytes that autograd keeps of `tokens` positions; with checkpointing each block's input, and one block in full.

    What `run_forward` records of attention is part of what autograd keeps anyway; with checkpointing it comes on top.
    """
    block = model.layer_activation_bytes(size)
    if not checkpointing:
        return float(tokens * model.layers * block)
    return float(tokens * (block + model.layers * (model.hidden * size + model.recorded_bytes(size))))


def _logits(model: Architecture, size: int, positions: int) -> float:
    """Bytes of the logits of `positions` tokens (oar/method/forward/projection.py): a block as computed and twice in
    float32, and those kept."""
    logits = positions * model.vocabulary
    return float((size + 2 * FLOAT32) * min(logits, GPU_BLOCK) + FLOAT32 * min(logits, KEPT))


def _signal(
    estimator: ImportanceEstimator,
    model: Architecture,
    assume: Assumptions,
    size: int,
    tokens: int,
    longest: int,
    *,
    checkpointing: bool,
) -> float:
    """Bytes a credit signal holds at most beside the update's own forward of `tokens`, where completions have up to `longest`.

    Counterfactuals and OAR-G go through as many completions at a time as have `max_tokens_per_forward`, or through one, and
    keep a padded copy of their clean keys and values. Counterfactuals keep the logits of one forward.
    """
    match estimator:
        case ShuffledImportance(of=of) | InvertedImportance(of=of):
            return _signal(of, model, assume, size, tokens, longest, checkpointing=checkpointing)
        case GradientImportance(max_tokens_per_forward=most):
            shown = min(tokens, max(most, assume.longest_prompt + longest))
            return _noisy_graph(model, size, shown, min(shown, max(most, longest)), checkpointing=checkpointing)
        case PerturbationImportance(max_tokens_per_forward=most):
            lengths = Lengths(
                assume.longest_prompt,
                longest - assume.marker_tokens - assume.answer_tokens - 1,
                assume.marker_tokens,
                assume.answer_tokens,
            )
            shown = min(tokens, max(most, assume.longest_prompt + longest))
            together = max(1.0, most / recomputed(estimator, lengths))
            # Logits as computed and in float32, and four more of the size of one distribution for the divergence.
            logits = together * model.vocabulary * (assume.answer_tokens * (size + FLOAT32) + 4 * FLOAT32)
            return shown * model.kv_bytes(size) + logits
    return 0.0


def _noisy_graph(model: Architecture, size: int, shown: int, again: int, *, checkpointing: bool) -> float:
    """Bytes of OAR-G's clean keys of `shown` tokens and of its graph over the `again` of them that run again.

    Each block copies the keys and keeps its activations; with checkpointing one block does at a time, and all keep their
    input. In half precision two forwards run side by side in float32 (oar/method/importance/in_pairs.py).
    """
    copies, wide = (1, size) if size >= FLOAT32 else (2, FLOAT32)
    keys = float(shown * model.kv_bytes(wide))
    block = keys / model.layers + again * model.layer_activation_bytes(wide)
    graph = block + model.layers * again * model.hidden * wide if checkpointing else model.layers * block
    return keys + copies * graph
