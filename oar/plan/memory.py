"""Memory of one device: what the learner's rank and the engine on it hold at the worst moment of a step."""

from dataclasses import dataclass, replace

from oar.config import TrainConfig
from oar.learner.credit import Method
from oar.method.forward.projection import GPU_BLOCK, KEPT
from oar.method.importance import (
    CounterfactualDrop,
    CreditSignal,
    GradientDrop,
    GradientImportance,
    GradientNormImportance,
    InvertedImportance,
    PerturbationImportance,
    ShuffledImportance,
    SignedAdvantages,
    SignMatchedImportance,
)
from oar.plan.assumptions import Assumptions
from oar.plan.model import Architecture
from oar.plan.work import Lengths, recomputed

# Made from another signal, at its price.
_OF_ANOTHER = ShuffledImportance | InvertedImportance | SignMatchedImportance | SignedAdvantages | CounterfactualDrop
GIB = 2**30
FLOAT32 = 4
NUMBER_BYTES = {"float32": FLOAT32, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes by what they are for, of one rank of the learner and of one engine; both add up where they share a device."""

    learner: dict[str, float]
    engine: dict[str, float]
    shared: bool

    @property
    def sides(self) -> dict[str, dict[str, float]]:
        """Both, by name."""
        return {"learner": self.learner, "engine": self.engine}

    @property
    def device(self) -> float:
        """Bytes of the fullest device."""
        sums = [sum(side.values()) for side in self.sides.values()]
        return sum(sums) if self.shared else max(sums)


def largest_micro_batch(cfg: TrainConfig, assume: Assumptions) -> int:
    """Tokens of learner.micro_batch_tokens, or of the longest prompt with a completion cut at rollout.max_new_tokens."""
    return max(cfg.learner.micro_batch_tokens, assume.longest_prompt + cfg.rollout.max_new_tokens)


def memory_of(
    cfg: TrainConfig,
    model: Architecture,
    assume: Assumptions,
    estimator: CreditSignal,
    scorer: Architecture | None = None,
) -> Memory:
    """The largest micro-batch is planned for.

    Parameters, gradients and the two moments of AdamW are float32, 16 bytes a parameter, in equal parts on the ranks (ZeRO,
    Rajbhandari et al. 2020, 1910.02054, section 3.1). Where they are sharded or cast (oar/learner/sharding.py), a rank also
    has all weights in `learner.compute_dtype` for a whole step, and the gradients of embeddings and head, the largest group,
    once in that and once in float32 while they are summed. With an adapter (LoRA) it alone has gradients and moments. `scorer`
    is the frozen reward model of probe=reward_model, whose head of one row is left out.
    """
    size, ranks, n = NUMBER_BYTES[cfg.learner.compute_dtype], cfg.learner.ranks, model.parameters
    lora = cfg.model.lora
    adapter = 0 if lora is None else model.adapter_parameters(lora.r, lora.targets)
    trained, largest = (n, model.embedding_parameters) if lora is None else (adapter, adapter / model.layers)
    tokens = largest_micro_batch(cfg, assume)
    logits = tokens * model.vocabulary
    part, overhead = FLOAT32 * trained / ranks, assume.overhead_gib * GIB
    learner = {"weights": FLOAT32 * (n + adapter) / ranks, "gradients": part, "optimizer": 2 * part}
    method = Method.built(cfg)
    if cfg.learner.kl_coef > 0 or method.needs_reference or cfg.method.teacher.kind == "start":
        learner["reference"] = size * n
    if cfg.method.teacher.follows:
        learner["teacher"] = size * n
    if method.learned is not None:  # with gradients and two moments
        learner["reward_model"] = 4 * FLOAT32 * n
    if scorer is not None:
        learner["scorer"] = size * replace(scorer, tied=True).parameters
    if ranks > 1 or size != FLOAT32:
        learner["gathered_weights"] = size * (n + adapter)
        learner["summed_gradients"] = (size + FLOAT32) * largest
    learner["activations"] = _activations(model, size, tokens, cfg.learner.activation_checkpointing)
    # Of logits (oar/method/forward/projection.py): a block as computed and twice in float32, and those that stay.
    learner["logits"] = (size + 2 * FLOAT32) * min(logits, GPU_BLOCK) + FLOAT32 * min(logits, KEPT)
    learner["credit_signal"] = _signal(cfg, scorer or model, assume, estimator)
    learner["overhead"] = overhead
    weights, cache = NUMBER_BYTES[cfg.model.dtype] * n, cfg.rollout.kv_cache_gib * GIB
    engine = {"weights": weights, "kv_cache": cache, "overhead": overhead}
    return Memory(learner, engine, shared=ranks + assume.engines > assume.devices)


def _activations(model: Architecture, size: int, tokens: int, checkpointing: bool) -> int:
    """Bytes that autograd saves of `tokens` positions; with checkpointing each block's input, and one block in full.

    What `run_forward` records of attention is part of what autograd saves anyway; with checkpointing it comes on top.
    """
    block = model.layer_activation_bytes(size)
    if not checkpointing:
        return tokens * model.layers * block
    return tokens * (block + model.layers * (model.hidden * size + model.recorded_bytes(size)))


def _signal(cfg: TrainConfig, model: Architecture, assume: Assumptions, estimator: CreditSignal) -> float:
    """Bytes a credit signal holds at most beside the update's own forward.

    Counterfactuals and OAR-G go through as many completions at a time as have `max_tokens_per_forward`, or through one, and
    hold a padded copy of their clean keys and values: counterfactuals beside the logits of one forward, OAR-G beside the
    graph of what runs again. Each block of that copies the keys and saves its activations; with checkpointing one block
    does at a time, and all save their input. In half precision two such forwards run side by side in float32
    (oar/method/importance/in_pairs.py).
    """
    if isinstance(estimator, _OF_ANOTHER):
        return _signal(cfg, model, assume, estimator.of)
    alone = not cfg.probe.needs_answer  # a forward of its own, with its graph, as the right answer has
    if isinstance(estimator, GradientDrop) or (alone and isinstance(estimator, GradientNormImportance)):
        size, tokens = NUMBER_BYTES[cfg.learner.compute_dtype], estimator.max_tokens_per_forward
        return _activations(model, size, tokens, cfg.learner.activation_checkpointing)
    if not isinstance(estimator, GradientImportance | PerturbationImportance):
        return 0.0
    size, longest = NUMBER_BYTES[cfg.learner.compute_dtype], cfg.rollout.max_new_tokens
    most = estimator.max_tokens_per_forward
    shown = min(largest_micro_batch(cfg, assume), max(most, assume.longest_prompt + longest))
    if isinstance(estimator, GradientImportance):
        again, keys = min(shown, max(most, longest)), shown * model.kv_bytes(FLOAT32)
        block = keys / model.layers + again * model.layer_activation_bytes(FLOAT32)
        if cfg.learner.activation_checkpointing:
            graph = block + model.layers * again * model.hidden * FLOAT32
        else:
            graph = model.layers * block
        return keys + graph * (1 if size == FLOAT32 else 2)
    marker, answer = assume.marker_tokens, assume.answer_tokens
    lengths = Lengths(assume.longest_prompt, longest - marker - answer - 1, marker, answer)
    together = max(1.0, most / recomputed(estimator, lengths))
    # Logits as computed and in float32, and four more of the size of one distribution for the divergence.
    logits = together * model.vocabulary * (answer * (size + FLOAT32) + 4 * FLOAT32)
    return shown * model.kv_bytes(size) + logits
