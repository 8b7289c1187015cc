"""Token signals on completions that a run kept: the run's own, and those of any method under any weights."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from experiments.inspect_credit.token_signal import TokenSignal
from oar.analysis.signals.kept import KeptStep, shared_marks
from oar.common.errors import DataError
from oar.config import GatingConfig, MethodConfig, TrainConfig
from oar.learner.credit import Method
from oar.learner.samples import Sample
from oar.method.batch import CompletionBatch
from oar.method.credit import Credit
from oar.method.gating import threshold_importance
from oar.method.importance import ExactAdvantages, ExactWeights, gives, needs_batch
from oar.method.importance.base import context_of
from oar.method.losses import clipped_tokens, policy_log_ratio
from oar.tasks.task import Task

LOGGED = "as the run logged it"
MARKS = {
    "causal": "Oracle: the tokens that carry the computation, known to the task.",
    "written": "Oracle: the causal tokens, and the signs = and . that decide whether a result is written.",
    "error": "Oracle: of a wrong completion its first wrong token, of a right one its causal tokens.",
}


def logged_signals(samples: Sequence[Sample], settings: TrainConfig, notes: list[str]) -> list[TokenSignal]:
    """What the run itself knew: its method's weights, token advantages, entropy, surprisal, and the task's marks.

    What the run did beside these, or did not keep, is said in `notes`.
    """
    name, parts = settings.method.name, Method.built(settings)
    notes += [f"{name} {more}" for more in _beside(parts)]
    if parts.signed and samples[0].token_advantages is None:
        notes.append(f"The run is of an earlier version, which did not keep the token advantages that {name} gave.")
    advantages = TokenSignal(
        "advantage",
        LOGGED,
        "advantage",
        f"Token advantages that {name} gave, each with a sign of its own."
        if parts.signed
        else "Token advantage: weight times advantage.",
        [sample.advantages for sample in samples],
    )
    surprisal = [[-logprob for logprob in sample.old_logprobs] for sample in samples]
    found = [
        *([] if parts.signed else [_logged_weights(samples, settings, gives(parts.signal) == "importance")]),
        advantages,
        TokenSignal(
            "entropy", LOGGED, "amount", "The drawing policy's entropy, in nats.", [one.entropy for one in samples]
        ),
        TokenSignal(
            "surprisal", LOGGED, "amount", "-logprob of the drawn token when it was drawn, in nats.", surprisal
        ),
    ]
    for name in shared_marks(samples):
        values = [[float(at in sample.marks[name]) for at in range(len(sample.tokens))] for sample in samples]
        found.append(TokenSignal(name, LOGGED, "mark", MARKS.get(name, "Ground truth of the task."), values))
    return found


def _logged_weights(samples: Sequence[Sample], settings: TrainConfig, gated: bool) -> TokenSignal:
    credited = [sample.reasoning_tokens if gated and sample.advantage != 0 else 0 for sample in samples]
    importance = [sample.token_importance[:count] for sample, count in zip(samples, credited, strict=True)]
    how = _gate(settings.gating) if gated else "without a gate"
    return TokenSignal(
        settings.method.name,
        LOGGED,
        "weight",
        f"Weights that the run trained with ({how}); all 1 where the completion has no answer or advantage 0.",
        [sample.token_weights[: sample.reasoning_tokens] for sample in samples],
        importance,
        _thresholds(importance, settings.gating),
    )


def model_signals(
    model: PreTrainedModel,
    task: Task,
    samples: Sequence[Sample],
    settings: TrainConfig,
    methods: Mapping[str, MethodConfig],
    *,
    step: int,
    source: str,
    notes: list[str],
) -> list[TokenSignal]:
    """What `methods` and the loss make of the completions of training step `step` under the weights of `model`.

    Gate, probe and clip are those of `settings`, random draws those of the run: under the weights that drew the completions
    the run's own method gives what was logged. One that needs what a run does not keep is left out and named in `notes`. Raises
    DataError where the model's tokens are not the run's.
    """
    kept = KeptStep.read(model, task, settings, step, samples)
    batch, scores = kept.batch, kept.scores
    found = []
    for name, method in methods.items():
        parts = Method.built(replace(settings, method=method))
        if reason := _not_kept(parts):
            notes.append(f"{name} is not computed anew: {reason}.")
            continue
        if name != settings.method.name:
            notes += [f"{name} {more}" for more in _beside(parts)]
        try:
            credit = kept.credit(method)
        except DataError as error:
            notes.append(f"{name} is not computed anew: {error}")
            continue
        found.append(_method_signal(name, credit, batch, settings.gating, source, gives(parts.signal)))

    advantages = _padded([sample.advantages for sample in samples], batch)
    log_ratio = torch.where(batch.completion_mask, scores.logprobs - batch.sampler_logprobs, 0.0)
    ratio = policy_log_ratio(log_ratio, batch.completion_mask, settings.learner.ratio_level).exp()
    low, high = settings.learner.clip_eps_low, settings.learner.clip_eps_high
    clipped = clipped_tokens(ratio, advantages, low, high)
    lengths = batch.completion_lengths.tolist()
    return [
        *found,
        TokenSignal("entropy", source, "amount", "The policy's entropy, in nats.", _lists(scores.entropy, lengths)),
        TokenSignal(
            "surprisal", source, "amount", "-logprob of the token, in nats.", _lists(-scores.logprobs, lengths)
        ),
        TokenSignal(
            "ratio",
            source,
            "ratio",
            "Importance ratio: probability of the token under these weights over that when it was drawn (with "
            "learner.ratio_level=sequence the geometric mean over the completion).",
            _lists(ratio, lengths),
        ),
        TokenSignal(
            "clipped",
            source,
            "mark",
            f"Tokens that a further update from here would clip (ratio below {1 - low:g} or above {1 + high:g}, on the side "
            "that its advantage asks for).",
            _lists(clipped.float(), lengths),
        ),
    ]


def _not_kept(parts: Method) -> str | None:
    """What a method needs that a run does not keep, if anything."""
    if needs_batch(parts.signal):
        return "it compares all completions of a step, and a run keeps some"
    if context_of(parts.signal) is not None:
        return "it looks at completions with a privileged context, which a run does not keep"
    if isinstance(parts.signal, ExactWeights | ExactAdvantages):
        return "it needs the token that would be right in each place, and a run keeps the places alone"
    return None


def _beside(parts: Method) -> list[str]:
    """What a method has beside token weights or advantages, so that the page shows a part of its credit."""
    more = []
    if parts.surrogate is not None:
        more.append("also changes ratios or advantages in the loss, which is not shown.")
    if parts.auxiliary is not None:
        more.append("also has a loss of its own for each token, which is not shown.")
    return more


def _method_signal(
    name: str, credit: Credit, batch: CompletionBatch, gating: GatingConfig, source: str, what: str
) -> TokenSignal:
    """what: `oar.method.importance.gives`."""
    if what == "advantages":
        values = _lists(credit.token_advantages, batch.completion_lengths.tolist())
        return TokenSignal(
            name, source, "advantage", f"Token advantages of {name}, each with a sign of its own.", values
        )
    reasoning = batch.reasoning_mask.sum(dim=1).tolist()
    gated = what == "importance"
    importance = _lists(credit.token_importance, reasoning if gated else [0] * len(reasoning))
    return TokenSignal(
        name,
        source,
        "weight",
        f"Weights of {name} ({_gate(gating) if gated else 'without a gate'}).",
        _lists(credit.token_weights, reasoning),
        importance,
        _thresholds(importance, gating),
    )


def _gate(gating: GatingConfig) -> str:
    return (
        f"gate {gating.name}, tau {gating.tau:g}, beta {gating.beta:g}, threshold {gating.threshold}, where the method has "
        "importance; where it has signed token advantages, their size over that of the advantage"
    )


def _thresholds(importance: Sequence[Sequence[float]], gating: GatingConfig) -> list[float | None]:
    """Of each completion. The released loop's depend on completions that are not here, so there are none."""
    if gating.threshold == "released_drift":
        return [None] * len(importance)
    rows = [torch.tensor(row)[None] for row in importance]
    found = [
        threshold_importance(row, torch.ones_like(row), tau=gating.tau, threshold=gating.threshold) for row in rows
    ]
    return [None if level.isnan() else float(level) for level in found]


def _padded(rows: Sequence[Sequence[float]], batch: CompletionBatch) -> Tensor:
    padded = torch.ones(batch.completion_mask.shape, device=batch.completion_mask.device)
    padded[batch.completion_mask] = torch.tensor([value for row in rows for value in row], device=padded.device)
    return padded


def _lists(values: Tensor, lengths: Sequence[int]) -> list[list[float]]:
    return [row[:length] for row, length in zip(values.tolist(), lengths, strict=True)]
