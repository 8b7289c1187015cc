"""Token signals on completions that a run kept: the run's own, and those of any method under any weights."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from experiments.inspect_credit.token_signal import TokenSignal
from oar.analysis.signals.examine import score_batch
from oar.common.errors import DataError
from oar.common.seeding import derive_seed
from oar.config import GatingConfig, MethodConfig, TrainConfig
from oar.learner.credit import Method, credit_assigner
from oar.learner.samples import Sample
from oar.method.batch import CompletionBatch, collate
from oar.method.credit import Credit
from oar.method.gating import threshold_importance
from oar.method.importance import ExactAdvantages, ExactWeights, gives, needs_batch
from oar.method.importance.base import context_of
from oar.method.losses import clipped_tokens, policy_log_ratio
from oar.method.segments import Segments
from oar.model.load import load_scorer
from oar.tasks.problem import Problem
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
    for name in _shared_marks(samples):
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
    for sample in samples:
        if task.decode(sample.completion_ids) != sample.completion:
            raise DataError(
                f"The model must read the run's tokens as the run did, but reads a completion of {sample.problem} as "
                f"{task.decode(sample.completion_ids)!r}, not {sample.completion!r}: choose a model with the run's tokenizer."
            )
    batch = _batch(samples, task, model.device)
    scores = score_batch(model, batch, settings)
    scorer = load_scorer(settings.probe.path, task.tokenizer, settings.model.dtype)
    found = []
    for name, method in methods.items():
        parts = Method.built(replace(settings, method=method))
        if reason := _not_kept(parts):
            notes.append(f"{name} is not computed anew: {reason}.")
            continue
        if name != settings.method.name:
            notes += [f"{name} {more}" for more in _beside(parts)]
        assigner = credit_assigner(replace(settings, method=method), task, parts.signal, step - 1, scorer)
        try:
            credit = assigner(
                model,
                batch,
                scores,
                # Of a completion without one 1, so that none is passed over.
                torch.tensor([sample.advantage or 1.0 for sample in samples], device=batch.input_ids.device),
                seeds=[derive_seed(settings.seed, "credit", step - 1, sample.row) for sample in samples],
                marks={name: _mark(samples, name, batch.completion_mask) for name in _shared_marks(samples)},
                temperature=settings.rollout.temperature,
            )
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


def _batch(samples: Sequence[Sample], task: Task, device: torch.device) -> CompletionBatch:
    """The completions as the step had them; their old logprobs stand for the sampler's, which are not kept."""
    return collate(
        [sample.prompt_ids for sample in samples],
        [sample.completion_ids for sample in samples],
        [sample.old_logprobs for sample in samples],
        [None if sample.segments is None else Segments(*sample.segments) for sample in samples],
        [task.encode_gold(Problem(one.problem, one.prompt, one.gold, one.benchmark)) for one in samples],
        pad_id=task.pad_id,
        device=device,
    )


def _shared_marks(samples: Sequence[Sample]) -> list[str]:
    return sorted(set.intersection(*(set(sample.marks) for sample in samples)))


def _mark(samples: Sequence[Sample], name: str, mask: Tensor) -> Tensor:
    mark = torch.zeros_like(mask)
    for row, sample in enumerate(samples):
        mark[row, sample.marks[name]] = True
    return mark


def _padded(rows: Sequence[Sequence[float]], batch: CompletionBatch) -> Tensor:
    padded = torch.ones(batch.completion_mask.shape, device=batch.completion_mask.device)
    padded[batch.completion_mask] = torch.tensor([value for row in rows for value in row], device=padded.device)
    return padded


def _lists(values: Tensor, lengths: Sequence[int]) -> list[list[float]]:
    return [row[:length] for row, length in zip(values.tolist(), lengths, strict=True)]
