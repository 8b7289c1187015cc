"""The credit inspector's page: completions and token signals in, one HTML text out that needs nothing beside it.

The page's own parts are web/inspector.{html,css,js}. What comes from completions is shown as text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from experiments.inspect_credit.html import short, whole_page
from experiments.inspect_credit.token_signal import TokenSignal, rank_agreement
from oar.common.errors import DataError
from oar.learner.samples import Sample, pieces


@dataclass(frozen=True, slots=True)
class InspectorPage:
    """N completions of one training step, and what the token signals say of them.

    facts: what the page is of, in pairs; notes: sentences on what is missing or how to read it; provenance: JSON-ready.
    """

    title: str
    facts: Mapping[str, str]
    notes: Sequence[str]
    samples: Sequence[Sample]
    signals: Sequence[TokenSignal]
    provenance: Mapping[str, object]


def inspector_html(page: InspectorPage) -> str:
    """The page as text. Raises DataError where a signal is not of these completions."""
    return whole_page(page.title, page_data(page))


def page_data(page: InspectorPage) -> dict[str, object]:
    """What the page's script is given."""
    for signal in page.signals:
        lengths = [len(values) for values in signal.values]
        wanted = [one.reasoning_tokens if signal.kind == "weight" else len(one.tokens) for one in page.samples]
        if lengths != wanted:
            raise DataError(f"{signal.name} must have {wanted} values by completion, but has {lengths}.")
    agreement = rank_agreement(page.signals, [sample.reasoning_tokens for sample in page.samples])
    return {
        "title": page.title,
        "facts": dict(page.facts),
        "notes": list(page.notes),
        "signals": [
            {"name": signal.name, "source": signal.source, "kind": signal.kind, "about": signal.about}
            for signal in page.signals
        ],
        "completions": [_completion(page, row) for row in range(len(page.samples))],
        "agreement": [[*pair, [short(value) for value in values]] for pair, values in agreement.items()],
        "provenance": page.provenance,
    }


def _completion(page: InspectorPage, row: int) -> dict[str, object]:
    sample, weights = page.samples[row], [signal for signal in page.signals if signal.kind == "weight"]
    return {
        "problem": sample.problem,
        "benchmark": sample.benchmark,
        "prompt": sample.prompt,
        "gold": sample.gold,
        "correct": sample.correct,
        "reward": short(sample.reward),
        "advantage": short(sample.advantage),
        "tokens": pieces(sample.tokens, sample.completion),
        "segments": sample.segments,
        "values": [[short(value) for value in signal.values[row]] for signal in page.signals],
        "importance": [[short(value) for value in signal.importance[row]] for signal in weights],
        "thresholds": [short(signal.thresholds[row]) for signal in weights],
    }
