"""The claim ledger as the section of a page that shows it.

Only columns that are named as the paper's hold what the paper says; everything else was measured on the runs of the ledger.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from oar.analysis.claims.claims import MIN_SEEDS, NOT_RUN, VERDICTS
from oar.analysis.claims.quantities import COLLAPSE_SHARE, COLLAPSE_WINDOW
from oar.analysis.reports.page import interval_text, rendered, table_lines
from oar.statistics.intervals import CONFIDENCE

TEMPLATE = Path(__file__).with_name("claims.md.j2")
DIGITS = {"%": 1, "points": 1, "x": 2, "steps": 0, "reward": 3}  # by unit
NUMBERS = ["tolerance", "value", "low", "high", "problems"]
SIGNED = ("points", "steps", "reward")


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
    table[NUMBERS] = table[NUMBERS].apply(pd.to_numeric)
    return table.astype({"problems": "Int64"})


def tested_table(rows: pd.DataFrame) -> str:
    """Markdown: the claims that could be tested, each with its verdict and what it rests on."""
    header = ["claim of the paper", "the paper's range", "verdict", "quantity", "metric"]
    header += [f"measured here [{CONFIDENCE:.0%}]", "interval over", "problems x k", "seeds"]
    lines = []
    for row in rows.to_dict("records"):
        form = f"{'+' if row['unit'] in SIGNED else ''}.{DIGITS[row['unit']]}f"
        measured = " ".join(
            filter(None, [f"{row['value']:{form}}", interval_text(row["low"], row["high"], form), row["unit"]])
        )
        judged = f"**{row['verdict']}**" + (f" ({row['reason']})" if row["reason"] else "")
        claimed = row["paper_target"] + (f" ± {row['tolerance']:g}" if row["tolerance"] else "")
        sampled = f"{row['problems']} x {row['k']}" if row["k"] else ""
        lines.append([row["paper_claim"], claimed, judged, row["quantity"], row["metric"], measured])
        lines[-1] += [row["interval_over"], sampled, row["seeds"]]
    return table_lines(header, lines)


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
