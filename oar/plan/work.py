"""What a step computes, counted in forwards: the update (`oar.learner.step`) and a credit signal (`oar.method.importance`)."""

from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from oar.config import LearnerConfig, ProbeConfig, TrainConfig
from oar.method.auxiliary import AuxiliaryLoss, CertifiedCloning, KlByClass, TeacherDivergence, TopDivergence
from oar.method.importance import (
    AttentionGradientDrop,
    AttentionGradientImportance,
    ContinuationAdvantages,
    CounterfactualDrop,
    CreditSignal,
    ExactAdvantages,
    ExactWeights,
    GradientDrop,
    GradientImportance,
    GradientNormImportance,
    GrailWeights,
    HighEntropyWeights,
    ImplicitRewardAdvantages,
    InformationAdvantages,
    MadeFrom,
    PerturbationImportance,
    RewardHeadAdvantages,
    SelfDistilledWeights,
    ShearWeights,
    TokenBaseline,
    TreeAdvantages,
    ValueHeadAdvantages,
    reads_gold,
)
from oar.plan.assumptions import Assumptions
from oar.plan.model import Architecture

STEP_TOKENS = 16  # of the reasoning (assumption): a sentence of a word problem has 9, a line of a derivation 25


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of one completion: prompt | reasoning | marker | answer | EOS.

    together: completions of its prompt in one forward, which share all of the prompt but its last token.
    """

    prompt: int
    reasoning: int
    marker: int
    answer: int
    together: int = 1

    @property
    def tail(self) -> int:
        """Positions behind the reasoning that `as_mean` shows the model: the answer's last token is read by none."""
        return self.marker + self.answer - 1

    @property
    def shown(self) -> int:
        """Positions that `as_mean` shows the model in all."""
        return self.prompt + self.reasoning + self.tail

    @property
    def completion(self) -> int:
        """All its tokens, EOS too."""
        return self.reasoning + self.marker + self.answer + 1

    def forward(self, behind: int, read: int) -> "Work":
        """One completion's share of a causal forward over the prompt and `behind` positions of each of those together."""
        return forward(self.prompt - 1, 0) * (1 / self.together) + Work(
            behind + 1, (behind + 1) * (self.prompt - 1 + (behind + 2) / 2), read
        )


def together(learner: LearnerConfig, prompt: int, completion: int) -> int:
    """Completions of one prompt that a micro-batch of the learner holds, lengths in tokens."""
    return max(1, min(learner.num_generations, (learner.micro_batch_tokens - prompt + 1) // (completion + 1)))


@dataclass(frozen=True, slots=True)
class Work:
    """Positions run, pairs of a query and a key that meet, positions whose logits are computed."""

    tokens: float = 0.0
    pairs: float = 0.0
    read: float = 0.0

    def __add__(self, other: "Work") -> "Work":
        return Work(self.tokens + other.tokens, self.pairs + other.pairs, self.read + other.read)

    def __mul__(self, factor: float) -> "Work":
        return Work(factor * self.tokens, factor * self.pairs, factor * self.read)

    def flops(self, model: Architecture) -> float:
        """Floating-point operations, two to a multiplication and addition; a pair has a product for the score, one for the value.

        Source: Kaplan et al. 2020 (2001.08361), section 2.1; norms, biases and softmax are left out, as there.
        """
        blocks = model.layer_matrices * self.tokens + 2 * model.hidden * self.pairs
        return 2 * (model.layers * blocks + model.hidden * model.vocabulary * self.read)

    def blocks(self, again: bool) -> "Work":
        """What checkpointing runs `again` on the way back: all but the logits."""
        return Work(self.tokens, self.pairs) * again


@runtime_checkable
class SaysItsWork(Protocol):
    """An estimator that is not of this package, and knows what it costs."""

    def work(self, lengths: Lengths) -> Work:
        """Beyond the update's own forward, for one completion that has an advantage."""
        ...


def forward(tokens: int, read: int) -> Work:
    """A causal forward over `tokens` positions: each meets itself and those before it."""
    return Work(tokens, tokens * (tokens + 1) / 2, read)


def to_inputs(work: Work) -> Work:
    """The backward of a forward to its inputs alone: one product for a matrix, where weights would cost a second one.

    Of attention there are no weights, and both factors of each of its products need a gradient.
    """
    return Work(work.tokens, 2 * work.pairs, work.read)


def update_work(cfg: TrainConfig, assume: Assumptions, *, scores_all: bool = False) -> Work:
    """Forwards and backwards of one step by the learner, importance apart; a backward is two forwards.

    On the policy (one update per rollout) a completion with an advantage has one forward that scores, credits and learns;
    of those without it one in each group is scored, or each where a method compares them (`scores_all`). Otherwise those that
    learn are scored first as well. A KL term gives every completion a gradient and a forward of the reference. The backward
    computes the logits once more (oar/method/forward/projection.py), and with checkpointing the blocks. Source of the factor:
    Kaplan et al. 2020, section 2.1.
    """
    prompt, tokens = assume.prompt_tokens, assume.completion_tokens
    lengths = Lengths(prompt, tokens - 1, 0, 0, together(cfg.learner, prompt, tokens))
    completion = lengths.forward(tokens, tokens)
    # With an adapter (LoRA) the model's own matrices get no gradient; the adapter's few numbers are left out.
    backward = completion * 2 if cfg.model.lora is None else to_inputs(completion)
    again = Work(read=completion.read) + completion.blocks(cfg.learner.activation_checkpointing)
    learning = completion + backward + again
    kl = cfg.learner.kl_coef > 0
    share = 1.0 if kl else assume.contributing_share
    first = share if cfg.learner.updates_per_rollout > 1 else 0.0
    alone = replace(lengths, together=1).forward(tokens, tokens)
    idle = completion if scores_all else alone * (1 / cfg.learner.num_generations)
    return (learning * share + completion * (first + kl) + idle * (1 - share)) * cfg.learner.batch_size


def importance_work(estimator: CreditSignal, lengths: Lengths, learner: LearnerConfig) -> Work:
    """What `estimator` computes for one completion that has an advantage, beyond the update's own forward, which it shares.

    Probe `as_mean`; lengths for others are those of `probed`. Counterfactuals meet every clean key, before or after them (a
    mask hides the rest). Left out: padding, what the last layer saves (only read positions are computed there), and the clean
    forward of a probe whose text is not the completion's own (lt_logits with a conclude text of its own). An estimator of
    somebody else's says it itself (`SaysItsWork`), or counts as nothing.
    """
    checkpointing, half = learner.activation_checkpointing, learner.compute_dtype == "bfloat16"
    whole = lengths.forward(lengths.completion, lengths.completion)
    # Of a signal that compares completions all are scored before the update, which otherwise does it as it goes.
    on_policy = learner.updates_per_rollout == 1
    scored_first = whole if on_policy else Work()
    match estimator:
        case SaysItsWork():
            return estimator.work(lengths)
        case CounterfactualDrop(of=of):  # the right answer has a clean forward of its own
            return lengths.forward(lengths.reasoning + lengths.tail, lengths.answer) + importance_work(
                of, lengths, learner
            )
        case MadeFrom(of=of):
            return importance_work(of, lengths, learner)
        case AttentionGradientDrop():
            clean = lengths.forward(lengths.reasoning + lengths.tail, lengths.answer)
            return clean + _gradient_norm(lengths, checkpointing) + _attention_again(lengths)
        case GradientDrop():
            clean = lengths.forward(lengths.reasoning + lengths.tail, lengths.answer)
            return clean + _gradient_norm(lengths, checkpointing)
        case SelfDistilledWeights(context=context):
            return taught(lengths, context)
        case ImplicitRewardAdvantages():  # scores by two models, then one of them learns beside the other
            return scored_first + whole * 6 + Work(read=whole.read)
        case ValueHeadAdvantages():  # one more forward, which no logits are read from
            return scored_first + lengths.forward(lengths.completion, 0)
        case RewardHeadAdvantages():  # two more: by the policy, whose logits are read, and by the starting model
            return scored_first + whole + lengths.forward(lengths.completion, 0)
        case InformationAdvantages():
            return scored_first + _prefixes(lengths)
        case ExactWeights() | ExactAdvantages():  # one more forward, which scores the right tokens
            tokens = lengths.reasoning + lengths.tail
            return lengths.forward(tokens, tokens)
        case GradientNormImportance():
            return _gradient_norm(lengths, checkpointing)
        case AttentionGradientImportance():
            return _gradient_norm(lengths, checkpointing) + _attention_again(lengths)
        case GrailWeights(
            leaf=leaf
        ):  # of one that it reweighs; the head's backward computes the logits and its own gradient too
            shared = on_policy and leaf == "embeddings"
            back = to_inputs(whole) + Work(read=2 * whole.read) + whole.blocks(checkpointing)
            return back + (Work() if shared else whole)
        case HighEntropyWeights() | ContinuationAdvantages() | TreeAdvantages():
            return scored_first
        case ShearWeights():  # without the distances, which are no forward
            return scored_first + Work(whole.tokens, whole.pairs)
        case TokenBaseline():
            return scored_first + whole
        case GradientImportance(noise_draws=draws):
            # Run again from the first reasoning token on, over the clean keys, and back to the embeddings; in half precision
            # beside the clean one, once more, whose attention is in the backward as well.
            tokens = lengths.reasoning + lengths.tail
            noisy = Work(tokens, tokens * lengths.shown, lengths.answer)
            run = noisy * 2 if half else noisy
            back = to_inputs(noisy) + Work(pairs=2 * noisy.pairs if half else 0)
            return (run + back + run.blocks(checkpointing)) * draws
        case PerturbationImportance(budget=None):
            return _counterfactuals(estimator, lengths, lengths.reasoning)
        case PerturbationImportance(budget=int(budget)):
            chosen = _counterfactuals(estimator, lengths, min(budget, lengths.reasoning))
            return _gradient_norm(lengths, checkpointing) + chosen
    return Work()


def probed(probe: ProbeConfig, lengths: Lengths) -> tuple[Lengths, Work]:
    """What a probe shows of a completion, as lengths of `as_mean`, and the clean forward that it cannot share with the update.

    A reference solution is taken for as long as the reasoning.
    """
    if probe.name == "reward_model":  # which sees the answer's last token and EOS too
        shown = replace(lengths, answer=lengths.answer + 2)
    elif probe.reference == "solution":
        shown = replace(lengths, answer=lengths.reasoning)
    else:
        shown = lengths
    return shown, Work() if probe.needs_answer else forward(shown.shown, shown.answer)


def reads_outcome(estimator: CreditSignal) -> bool:
    """Whether a signal, or the one it is made from, looks at the outcome that the probe says."""
    if isinstance(estimator, MadeFrom):
        return reads_outcome(estimator.of) and not reads_gold(estimator)
    by_gradient = GradientImportance | GradientNormImportance | AttentionGradientImportance
    return isinstance(estimator, PerturbationImportance | by_gradient)


def auxiliary_work(auxiliary: AuxiliaryLoss | None, lengths: Lengths, learner: LearnerConfig) -> Work:
    """What a loss beside the policy's computes for one completion, beyond the update's own forward and its way back.

    Of a divergence: the teacher's forward, and five products with a head beside it (the student's logits, both once more in the
    backward pass, and their gradients to states and head).
    """
    whole = lengths.forward(lengths.completion, lengths.completion)
    match auxiliary:
        case TeacherDivergence(context=context, needs_reference=needs_reference):
            reference = whole if needs_reference else Work()
            return taught(lengths, context) + Work(read=5 * whole.read) + reference
        case TopDivergence(context=context):
            return taught(lengths, context) + Work(read=5 * whole.read)
        case KlByClass():
            return whole
        case CertifiedCloning(gate="mig_positive"):
            return _prefixes(lengths)
    return Work()


def taught(lengths: Lengths, context: str) -> Work:
    """A teacher's forward of a completion behind its privileged prompt.

    A solution is taken for as long as the reasoning, and what stands beside it (a sentence, without a template the question once
    more) for as long as the prompt.
    """
    shown = lengths.prompt + lengths.reasoning if context in ("solution", "peer") else 0
    same = 1 if context == "feedback" else lengths.together  # feedback is a completion's own
    behind = replace(lengths, prompt=lengths.prompt + shown, together=same)
    return behind.forward(lengths.completion, lengths.completion)


def _prefixes(lengths: Lengths) -> Work:
    """The right answer behind each prefix of whole steps, the empty one included."""
    steps = -(-lengths.reasoning // STEP_TOKENS)
    ends = (min(step * STEP_TOKENS, lengths.reasoning) for step in range(steps + 1))
    behind = replace(lengths, together=steps + 1)
    return sum((behind.forward(end + lengths.tail, lengths.answer) for end in ends), Work())


def is_known(estimator: CreditSignal) -> bool:
    """Whether a plan counts what it computes; one of somebody else's that says nothing counts as nothing."""
    if isinstance(estimator, SaysItsWork):
        return True
    own = type(estimator).__module__.startswith("oar.method.")
    return own and (not isinstance(estimator, MadeFrom) or is_known(estimator.of))


def _gradient_norm(lengths: Lengths, checkpointing: bool) -> Work:
    """One backward through the forward that is there; with checkpointing its blocks are run again on the way."""
    clean = lengths.forward(lengths.reasoning + lengths.tail, lengths.answer)
    return to_inputs(clean) + clean.blocks(checkpointing)


def _attention_again(lengths: Lengths) -> Work:
    """Two products of each later position with every position before it: scores, and gradients with values."""
    return Work(pairs=(lengths.reasoning + lengths.tail) * lengths.shown)


def recomputed(estimator: PerturbationImportance, lengths: Lengths) -> float:
    """Mean positions that one counterfactual of a completion recomputes.

    Token t of T: itself, the window and the routes after it, T - t at most (exactly that many where there is no window),
    and the tail: summed over t, n T - n (n - 1) / 2 + T tail with n = min(T, 1 + window + routes). Exact OAR-P has n = T,
    that is T (T + 1) / 2 + T tail.
    """
    count, window = lengths.reasoning, estimator.window
    n = count if window is None else min(count, 1 + window + estimator.routes)
    return n - n * (n - 1) / (2 * count) + lengths.tail


def _counterfactuals(estimator: PerturbationImportance, lengths: Lengths, count: int) -> Work:
    """Of `count` of the reasoning tokens, wherever they stand, and of finding their routes.

    Attention rollout has the scores of the clean forward, and once more those of every reasoning token's key; of each pair
    it computes the score and no value.
    """
    runs = count * estimator.draws
    tokens = runs * recomputed(estimator, lengths)
    scores = lengths.shown * (lengths.shown + 1) / 2 + lengths.reasoning * lengths.shown if estimator.routes else 0
    return Work(tokens, tokens * lengths.shown + scores / 2, runs * lengths.answer)
