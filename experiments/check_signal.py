"""Does a credit signal keep the contract, and what does it find? `python -m experiments.check_signal method=mine`.

Completions of the embedded model, drawn without an engine; what `oar.method.importance.base` asks of an estimator is tried
on them, and its importance is held against exact OAR-P and against the tokens that carry the computation.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from traceback import extract_tb
from typing import Annotated

import numpy as np
import torch
from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table
from torch import Tensor

from oar.analysis.signals.draw import draw
from oar.analysis.signals.examine import Subject, by_completion, examine
from oar.command_line.entry import entry
from oar.common.errors import MissingInputError, OarError
from oar.config import TrainConfig, validated
from oar.config.checks import AtLeast
from oar.launch.start_model import model_folder
from oar.learner.credit import Method
from oar.method.credit import checked
from oar.method.forward.logprobs import score_completions
from oar.method.importance import CreditInputs, CreditSignal, PerturbationImportance, gives, needs_batch
from oar.model.load import load_policy, load_tokenizer
from oar.statistics.attribution import recall_at_truth, spearman
from oar.tasks.data.sources import load_benchmarks
from oar.tasks.task import Task

GROUP = 4  # completions of each problem for a signal that compares them
TOLERANCE = 0.05  # of a completion's largest importance: OAR-G, a difference of two forwards, keeps a few digits


@dataclass(kw_only=True)
class CheckSignalConfig(TrainConfig):
    """A run's configuration and how much of it is looked at; see conf/check_signal.yaml."""

    problems: Annotated[int, AtLeast(2)]


@entry
def main(config: DictConfig) -> None:
    """Print a line for each part of the contract, then what the signal finds; exit code 1 where a part is broken."""
    cfg = validated(config, CheckSignalConfig)
    estimator = Method.built(cfg).signal  # refuses what a run would refuse
    torch.set_num_threads(cfg.learner.threads)
    subject = completions(cfg, samples=GROUP if needs_batch(estimator) else 1)
    table, broken = Table(box=None, show_header=False, pad_edge=False), []
    for what, holds in CONTRACT.items():
        problem = complaint(holds, estimator, subject.asked(estimator))
        table.add_row("broken" if problem else "holds", what, problem or "")
        if problem:
            broken.append(what)
    found = {} if broken else what_it_finds(estimator, subject)
    for name, value in found.items():
        table.add_row(shown(value), name.replace("_", " "), "")
    Console(width=150).print(table)
    print(json.dumps({"method": cfg.method.name, "broken": broken, **found}))
    sys.exit(1 if broken else 0)


def completions(cfg: CheckSignalConfig, samples: int) -> Subject:
    """Completions with an answer, `samples` of each problem, graded and scored, and what is known of their tokens."""
    folder = model_folder(cfg.model, print)
    model = load_policy(folder, cfg.model.dtype)
    task = Task.named(load_tokenizer(folder), cfg.model.marker, cfg.template)
    sets = load_benchmarks(cfg.benchmark, "tuning", -(-cfg.problems // len(cfg.benchmark.sets)))
    problems = [problem for found in sets.values() for problem in found.problems][: cfg.problems]
    rollout = cfg.rollout
    groups = draw(
        model,
        task,
        problems,
        samples=samples,
        temperature=rollout.temperature,
        max_new_tokens=rollout.max_new_tokens,
        seed=cfg.seed,
    )
    return examine(model, task, problems, groups, cfg)


def complaint(
    holds: Callable[[CreditSignal, CreditInputs], str | None],
    estimator: CreditSignal,
    inputs: CreditInputs,
) -> str | None:
    """What is wrong, in a sentence; an error of the estimator's own is named with its place.

    Raises MissingInputError for a signal that asks for what only a training run has: nothing is known of it then.
    """
    try:
        return holds(estimator, inputs)
    except MissingInputError:
        raise
    except OarError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001  # whatever somebody's estimator raises is the finding
        place = extract_tb(error.__traceback__)[-1]
        return f"raises {type(error).__name__} in {place.filename}:{place.lineno}: {error}"


def gives_what_it_says(estimator: CreditSignal, inputs: CreditInputs) -> str | None:
    """Shape, precision, sign, mask."""
    found = checked(estimator, inputs)
    if found.requires_grad:
        return f"the {gives(estimator)} carries a graph: detach it, what a signal gives is a constant of the loss"
    if gives(estimator) != "importance":
        return None
    values = found[inputs.batch.reasoning_mask]
    if not (torch.isfinite(values) & (values >= 0)).all():
        return f"the importance is between {float(values.min()):.3g} and {float(values.max()):.3g}: it must be finite, 0 or more"
    if (found[~inputs.batch.reasoning_mask] != 0).any():
        return "the importance is not 0 outside the reasoning mask"
    return None if (found != 0).any() else "the importance is 0 everywhere, as if nothing mattered"


def is_seeded(estimator: CreditSignal, inputs: CreditInputs) -> str | None:
    """Every random draw comes from a completion's own seed."""
    torch.manual_seed(1)
    first = estimator(inputs)
    torch.manual_seed(2)
    return (
        None
        if torch.equal(first, estimator(inputs))
        else f"two calls with the same seeds give different {gives(estimator)}"
    )


def is_each_completions_own(estimator: CreditSignal, inputs: CreditInputs) -> str | None:
    """Neither the other completions of a micro-batch nor padding change it; their order does not where it compares them."""
    mask = inputs.batch.completion_mask
    together = estimator(inputs) * mask
    if needs_batch(estimator):
        backwards = torch.arange(len(mask)).flip(0)
        other = (estimator(inputs.rows(backwards)) * mask[backwards])[backwards]
        off, largest = float((other - together).abs().max()), float(together.abs().max())
        if off <= TOLERANCE * largest:
            return None
        return f"in another order the {gives(estimator)} differs by {off:.3g}, where the largest is {largest:.3g}"
    for row in range(len(inputs.batch)):
        alone = (estimator(inputs.rows(torch.tensor([row]))) * mask[row])[0]
        width, largest = len(alone), float(together[row].abs().max())
        off = float((together[row, :width] - alone).abs().max())
        if off > TOLERANCE * largest:
            return f"completion {row} alone has {gives(estimator)} that differ by {off:.3g}, where the largest is {largest:.3g}"
    return None


def leaves_the_policy_alone(estimator: CreditSignal, inputs: CreditInputs) -> str | None:
    """In the update it is called between the forward and the backward pass: both must be as they would be without it."""
    model = inputs.model

    def gradient(with_signal: bool) -> Tensor:
        model.zero_grad(set_to_none=True)
        scores = score_completions(model, inputs.batch, temperature=1.0)
        if with_signal:
            estimator(inputs if needs_batch(estimator) else replace(inputs, scores=scores))
        scores.logprobs.sum().backward()
        found = [parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None]
        model.zero_grad(set_to_none=True)
        return torch.cat(found)

    before = [parameter.detach().clone() for parameter in model.parameters()]
    same = torch.allclose(gradient(True), gradient(False), rtol=1e-4, atol=1e-6)
    if not all(torch.equal(one, other) for one, other in zip(before, model.parameters(), strict=True)):
        return "it changes the policy's weights"
    return None if same else "it changes the gradient of the policy: use torch.autograd.grad, not backward()"


CONTRACT = {
    "(B, T) in float32 and finite, no importance or weight negative, no importance outside the reasoning": gives_what_it_says,
    "random draws come from the completions' seeds": is_seeded,
    "what a completion gets depends on no other one, nor on padding and order": is_each_completions_own,
    "weights and gradient of the policy stay as they are": leaves_the_policy_alone,
}


def what_it_finds(estimator: CreditSignal, subject: Subject) -> dict[str, float]:
    """Means over completions; the cost is the signal's seconds over those of the forward that scores."""
    inputs, masks = subject.asked(estimator), subject.masks
    seconds, found = timed(lambda: estimator(inputs))
    forward, _ = timed(lambda: score_completions(inputs.model, inputs.batch, temperature=1.0).logprobs)
    signal = by_completion(found.abs(), masks)  # of signed advantages how much a token counts, not which way
    exact = by_completion(PerturbationImportance()(inputs), masks)
    return {
        "rank_agreement_with_oar_p": mean(spearman(one, other) for one, other in zip(signal, exact, strict=True)),
        "recall_of_causal_tokens": mean(
            recall_at_truth(*pair) for pair in zip(signal, subject.truth.causal, strict=True)
        ),
        "share_of_causal_tokens": mean(causal.mean() for causal in subject.truth.causal),
        "cost_in_scoring_forwards": seconds / forward,
    }


def shown(value: float) -> str:
    """Two significant digits: a signal may cost hundreds of forwards, or next to nothing."""
    return np.format_float_positional(value, precision=2, unique=False, fractional=False, trim="-")


def timed(work: Callable[[], Tensor]) -> tuple[float, Tensor]:
    """Seconds of the second of two calls, and what it gave."""
    work()
    started = time.perf_counter()
    found = work()
    return time.perf_counter() - started, found


def mean(values: Iterator[float]) -> float:
    """Over the completions where it is defined."""
    return float(np.nanmean(list(values)))


if __name__ == "__main__":
    main()
