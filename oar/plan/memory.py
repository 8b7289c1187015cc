"""Memory of one device: what the learner's rank and the engine on it hold at the worst moment of a step."""

from dataclasses import dataclass, replace

from oar.config import TrainConfig
from oar.learner.credit import Method
from oar.method.auxiliary import AuxiliaryLoss, CertifiedCloning, TeacherDivergence, TopDivergence
from oar.method.forward.projection import GPU_BLOCK, KEPT
from oar.method.importance import (
    AttentionGradientDrop,
    AttentionGradientImportance,
    CreditSignal,
    ExactAdvantages,
    ExactWeights,
    GradientDrop,
    GradientImportance,
    GradientNormImportance,
    GrailWeights,
    ImplicitReward,
    ImplicitRewardAdvantages,
    MadeFrom,
    PerturbationImportance,
    RewardHead,
    SelfDistilledWeights,
)
from oar.plan.assumptions import Assumptions
from oar.plan.model import Architecture
from oar.plan.work import Lengths, recomputed

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
    if isinstance(method.learned, ImplicitReward):  # with gradients and two moments
        learner["reward_model"] = 4 * FLOAT32 * n
    if isinstance(method.learned, RewardHead):
        learner["reward_head"] = _remembered(method.learned, model)
    if scorer is not None:
        learner["scorer"] = size * replace(scorer, tied=True).parameters
    if ranks > 1 or size != FLOAT32:
        learner["gathered_weights"] = size * (n + adapter)
        learner["summed_gradients"] = (size + FLOAT32) * largest
    learner["activations"] = _activations(model, size, tokens, cfg.learner.activation_checkpointing)
    # Of logits (oar/method/forward/projection.py): a block as computed and twice in float32, and those that stay.
    learner["logits"] = (size + 2 * FLOAT32) * min(logits, GPU_BLOCK) + FLOAT32 * min(logits, KEPT)
    # One after the other, both while the graph of the update is there.
    learner["credit_signal"] = max(
        _signal(cfg, scorer or model, assume, estimator), _auxiliary(cfg, model, assume, method.auxiliary)
    )
    learner["overhead"] = overhead
    weights, cache = NUMBER_BYTES[cfg.model.dtype] * n, cfg.rollout.kv_cache_gib * GIB
    engine = {"weights": weights, "kv_cache": cache, "overhead": overhead}
    return Memory(learner, engine, shared=ranks + assume.engines > assume.devices)


def _remembered(how: RewardHead, model: Architecture) -> int:
    """Bytes of what a reward head keeps: its completions, twice while a step's come to them, and a number for every two of a
    state's entries in float64, which whitening needs three more times; and a code for each word.
    """
    width = model.hidden + 1
    changes, moments = how.memory * how.codes * width, width * width
    return FLOAT32 * (2 * changes + how.codes * model.vocabulary) + 4 * 2 * FLOAT32 * moments


def _activations(model: Architecture, size: int, tokens: int, checkpointing: bool) -> int:
    """Bytes that autograd saves of `tokens` positions; with checkpointing each block's input, and one block in full.

    What `run_forward` records of attention is part of what autograd saves anyway; with checkpointing it comes on top.
    """
    block = model.layer_activation_bytes(size)
    if not checkpointing:
        return tokens * model.layers * block
    return _without_graph(model, size, tokens) + tokens * model.layers * model.hidden * size


def _without_graph(model: Architecture, size: int, tokens: int) -> int:
    """Bytes of a forward of `tokens` positions that nothing is saved for: one block in full, and what is recorded of all.

    Its logits come one block at a time, when the update has none.
    """
    return tokens * (model.layer_activation_bytes(size) + model.layers * model.recorded_bytes(size))


def _signal(cfg: TrainConfig, model: Architecture, assume: Assumptions, estimator: CreditSignal) -> float:
    """Bytes a credit signal holds at most beside the update's own forward.

    One that scores all completions before the update holds less than it; forwards of a teacher and the like come while the
    update's graph is there.
    """
    size, checkpointing = NUMBER_BYTES[cfg.learner.compute_dtype], cfg.learner.activation_checkpointing
    match estimator:
        case MadeFrom(of=of):
            return _signal(cfg, model, assume, of)
        case GradientNormImportance(max_tokens_per_forward=most) if not cfg.probe.needs_answer:  # a forward of its own
            return _activations(model, size, _at_once(cfg, assume, most), checkpointing)
        case (
            AttentionGradientImportance(max_tokens_per_forward=most)
            | AttentionGradientDrop(max_tokens_per_forward=most)
        ):
            # The right answer has a forward of its own, and so has a probe that reads no answer.
            own = isinstance(estimator, AttentionGradientDrop) or not cfg.probe.needs_answer
            graph = own * _activations(model, size, _at_once(cfg, assume, most), checkpointing)
            return graph + _attention_again(cfg, model, assume, most)
        case GradientDrop(max_tokens_per_forward=most):  # the right answer has a forward of its own, with its graph
            return _activations(model, size, _at_once(cfg, assume, most), checkpointing)
        case GrailWeights(
            leaf="first" | "middle" | "last", max_tokens_per_forward=most
        ):  # likewise, unless scored before
            own = cfg.learner.updates_per_rollout == 1
            return own * _activations(model, size, _at_once(cfg, assume, most), checkpointing)
        case SelfDistilledWeights(max_tokens_per_forward=most):
            return _without_graph(model, size, _at_once(cfg, assume, most))
        case ExactWeights() | ExactAdvantages() | ImplicitRewardAdvantages():  # a whole micro-batch at a time
            return _without_graph(model, size, largest_micro_batch(cfg, assume))
        case GradientImportance(max_tokens_per_forward=most):
            return _noisy_gradient(cfg, model, assume, most)
        case PerturbationImportance():
            return _counterfactuals(cfg, model, assume, estimator)
    return 0.0


def _auxiliary(cfg: TrainConfig, model: Architecture, assume: Assumptions, auxiliary: AuxiliaryLoss | None) -> float:
    """Bytes a loss beside the policy's holds at most: a forward without a graph, of teacher, starting model or prefixes."""
    size = NUMBER_BYTES[cfg.learner.compute_dtype]
    match auxiliary:
        case TeacherDivergence(needs_reference=True):  # a whole micro-batch at a time
            return _without_graph(model, size, largest_micro_batch(cfg, assume))
        case (
            TeacherDivergence(max_tokens_per_forward=most)
            | TopDivergence(max_tokens_per_forward=most)
            | CertifiedCloning(gate="mig_positive", max_tokens_per_forward=most)
        ):
            return _without_graph(model, size, _at_once(cfg, assume, most))
    return 0.0


def _at_once(cfg: TrainConfig, assume: Assumptions, most: int) -> int:
    """Tokens of a forward over completions of a micro-batch that is bound to `most`, but holds one completion at least."""
    return min(largest_micro_batch(cfg, assume), max(most, assume.longest_prompt + cfg.rollout.max_new_tokens))


def _attention_again(cfg: TrainConfig, model: Architecture, assume: Assumptions, most: int) -> float:
    """Of a gradient to attention: what every layer's output gets, and five numbers of each key for `most` queries of a head."""
    gradients = largest_micro_batch(cfg, assume) * model.layers * model.hidden * NUMBER_BYTES[cfg.learner.compute_dtype]
    return gradients + 5 * most * (assume.longest_prompt + cfg.rollout.max_new_tokens) * FLOAT32


def _noisy_gradient(cfg: TrainConfig, model: Architecture, assume: Assumptions, most: int) -> float:
    """Of OAR-G: a padded copy of the clean keys and values beside the graph of what runs again.

    Each block of that copies the keys and saves its activations; with checkpointing one block does at a time, and all save
    their input. In half precision two such forwards run side by side in float32 (oar/method/importance/in_pairs.py).
    """
    shown = _at_once(cfg, assume, most)
    again, keys = min(shown, max(most, cfg.rollout.max_new_tokens)), shown * model.kv_bytes(FLOAT32)
    block = keys / model.layers + again * model.layer_activation_bytes(FLOAT32)
    inputs = again * model.hidden * FLOAT32
    graph = block + model.layers * inputs if cfg.learner.activation_checkpointing else model.layers * block
    return keys + graph * (1 if NUMBER_BYTES[cfg.learner.compute_dtype] == FLOAT32 else 2)


def _counterfactuals(
    cfg: TrainConfig, model: Architecture, assume: Assumptions, estimator: PerturbationImportance
) -> float:
    """Of OAR-P: a padded copy of the clean keys and values beside the logits of one forward."""
    size, most = NUMBER_BYTES[cfg.learner.compute_dtype], estimator.max_tokens_per_forward
    marker, answer = assume.marker_tokens, assume.answer_tokens
    lengths = Lengths(assume.longest_prompt, cfg.rollout.max_new_tokens - marker - answer - 1, marker, answer)
    together = max(1.0, most / recomputed(estimator, lengths))
    # Logits as computed and in float32, and four more of the size of one distribution for the divergence.
    logits = together * model.vocabulary * (answer * (size + FLOAT32) + 4 * FLOAT32)
    return _at_once(cfg, assume, most) * model.kv_bytes(size) + logits
