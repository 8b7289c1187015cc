"""The claim ledger as the section of a page that shows it.

Only columns that are named as the paper's hold what the paper says; everything else was measured on the runs of the ledger.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from oar.analysis.claims.claims import MIN_SEEDS, NOT_RUN, VERDICTS
from oar.analysis.claims.ledger import REGIMES
from oar.analysis.reports.page import rendered
from oar.runs.collapse import COLLAPSE_SHARE, COLLAPSE_WINDOW
from oar.statistics.intervals import CONFIDENCE

TEMPLATE = Path(__file__).with_name("claims.md.j2")
TESTED = Path(__file__).with_name("tested.md.j2")
FORMS = {"%": ".1f", "points": "+.1f", "x": ".2f", "steps": "+.0f", "reward": "+.3f"}  # how a value is written, by unit
NUMBERS = ["tolerance", "value", "low", "high", "problems"]


def claims_section(table: pd.DataFrame, profile: str) -> str:
    """Markdown: the rules, what was tested with its verdicts and intervals, what was not and why, and on which runs."""
    tested, missing = table[table["verdict"] != NOT_RUN], table[table["verdict"] == NOT_RUN]
    return rendered(
        TEMPLATE,
        profile=profile,
        confidence=f"{CONFIDENCE:.0%}",
        min_seeds=MIN_SEEDS,
        window=COLLAPSE_WINDOW,
        share=f"{COLLAPSE_SHARE:g}",
        tests=len(table),
        claims=table["claim_id"].nunique(),
        counts={verdict: (table["verdict"] == verdict).sum() for verdict in VERDICTS},
        tested=tested_table(tested) if len(tested) else "",
        # A line per claim and reason: under both metrics it mostly is the same one.
        missing=missing[["paper_claim", "reason"]].drop_duplicates().to_numpy().tolist(),
        record=_record(tested) if len(tested) else [],
    )


def read_ledger(path: Path) -> pd.DataFrame:
    """A table of `oar.analysis.claims.ledger.ledger` that was written as CSV: all but NUMBERS is text."""
    table = pd.read_csv(path, dtype=str, keep_default_na=False)
    if REGIMES not in table:  # one of before there were any
        table[REGIMES] = ""
    table[NUMBERS] = table[NUMBERS].apply(pd.to_numeric)
    return table.astype({"problems": "Int64"})


def tested_table(rows: pd.DataFrame) -> str:
    """Markdown: the claims that could be tested, each with its verdict and what it rests on."""
    rows = rows.assign(**{REGIMES: rows[REGIMES].astype(object).fillna("")})
    elsewhere = rows[REGIMES].ne("").any()
    return rendered(TESTED, rows=rows, confidence=f"{CONFIDENCE:.0%}", forms=FORMS, elsewhere=elsewhere).rstrip()


def _record(rows: pd.DataFrame) -> list[list[str]]:
    identities: dict[str, set[str]] = {}
    for text, seeds in zip(rows["identities"], rows["seeds"], strict=True):
        for arm, found in json.loads(text).items():
            named = {f"{seed}: {identity}" for seed, identity in zip(seeds.split(", "), found, strict=True)}
            identities.setdefault(arm, set()).update(named)
    return [
        ["model", _distinct(rows["model"])],
        ["training steps", _distinct(rows["steps"])],
        *([f"settings of {arm}, hash by seed", ", ".join(sorted(found))] for arm, found in identities.items()),
        ["settings of the evaluation, hash", _distinct(rows["measure"])],
        ["template, digest", _distinct(rows["template"]) or "none: the bare question"],
        ["data", _distinct(map(_origins, rows["data"]))],
        ["versions", _distinct(rows["versions"])],
        ["device", _distinct(rows["device"])],
        ["git commit", _distinct(rows["git_commit"])],
    ]


def _origins(text: str) -> str:
    """By set where its problems come from."""
    sets = json.loads(text) if text else {}
    return "; ".join(f"{name}: {', '.join(map(_fact, about.items()))}" for name, about in sets.items())


def _fact(item: tuple[str, Any]) -> str:
    name, value = item
    return f"{name} {' '.join(map(str, value)) if isinstance(value, list) else value}"


def _distinct(texts: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(text for text in texts if text))
