"""The credit inspector's page: completions and token signals in, one HTML text out that needs nothing beside it.

The page's own parts are web/inspector.{html.j2,css,js}; its policy lets no script and no style run but its own, and nothing be
loaded. Data goes in as JSON alone, and what comes from completions is shown as text.
"""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.inspect_credit.token_signal import TokenSignal, rank_agreement
from oar.analysis.reports.methods import label
from oar.analysis.reports.page import rendered
from oar.common.errors import DataError
from oar.learner.samples import Sample, pieces

WEB = Path(__file__).parent / "web"


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
    css, js = ((WEB / f"inspector.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
    text = json.dumps(page_data(page), separators=(",", ":"), allow_nan=False)
    # No character in it can end the element that it stands in, or open a comment.
    data = text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    policy = f"default-src 'none'; script-src '{_digest(js)}'; style-src '{_digest(css)}'"
    return rendered(WEB / "inspector.html.j2", title=page.title, policy=policy, css=css, js=js, data=data)


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
            {"name": shown_name(signal), "source": signal.source, "kind": signal.kind, "about": signal.about}
            for signal in page.signals
        ],
        "completions": [_completion(page, row) for row in range(len(page.samples))],
        "agreement": [[*pair, [short(value) for value in values]] for pair, values in agreement.items()],
        "provenance": page.provenance,
    }


def shown_name(signal: TokenSignal) -> str:
    """Weights are called as their method is everywhere, which tells the method `entropy` from the policy's entropy."""
    return label(signal.name) if signal.kind == "weight" else signal.name


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


def short(value: float | None) -> float | None:
    """To four digits, without a fraction where there is none: half of a page's size is such zeros."""
    if value is None:
        return None
    rounded = float(f"{value:.4g}")
    return int(rounded) if rounded.is_integer() else rounded


def _digest(content: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
