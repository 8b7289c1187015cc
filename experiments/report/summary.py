"""What a reader sees first: each of the main questions, answered with numbers that are read from tables of results/.

A sentence says "above" or "below" only where the interval leaves the other value out. What was not measured is reported as
missing, never guessed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from oar.analysis.claims.claims import NOT_REPRODUCED, NOT_RUN, REPRODUCED, TOO_FEW, VERDICTS, WITHIN
from oar.analysis.reports.differences import DIFFERENCES, needed_text, one_seed
from oar.analysis.reports.methods import CONTROL, METHOD, ORACLE, kind, label
from oar.evaluation.evaluate import MEAN
from oar.statistics.intervals import ENDS

CAUSAL, ERROR = "causal_auc", "error_top_fifth"  # metrics of recall.csv
TABLE1 = "table1"  # folder of results/: its answers come first
CHANCE = "uniform"  # its constant signal
SIGNS = {REPRODUCED: "✓", WITHIN: "≈", NOT_REPRODUCED: "✗", TOO_FEW: "?", NOT_RUN: "–"}


@dataclass(frozen=True, slots=True)
class Answer:
    """A question, the answer in a few words and in one line of numbers with intervals, sentences, a table, its file."""

    question: str
    short: str
    line: str
    sentences: Sequence[str]
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    source: str

    @property
    def folder(self) -> str:
        """Of results/, where the source lies."""
        return self.source.split("/")[0]


def summary(results: Path) -> tuple[list[Answer], list[str]]:
    """All answers that the tables give, in the order of the questions, and a sentence for each that is missing."""
    answers, missing = [], []
    for pattern, question, answer in QUESTIONS:
        files = sorted(results.glob(pattern), key=lambda path: (path.parent.name != TABLE1, path.parent.name))
        if not files:
            missing.append(f"“{question}” has no answer on top: there is no {pattern}.")
        for file in files:
            frame, folder = _read(file), file.parent.name
            asked = question if folder == TABLE1 or "*" not in pattern else f"{question} ({folder})"
            made = None if frame is None else answer(asked, frame, f"{folder}/{file.name}")
            if made is None:
                missing.append(f"{file.parent.name}/{file.name} does not hold what “{question}” is answered from.")
            else:
                answers.append(made)
    return answers, missing


def which_tokens(question: str, table: pd.DataFrame, source: str) -> Answer | None:
    """From recall.csv: which signal finds the causal tokens and the first error, of its last model."""
    if not {"model", "split", "signal", "metric", "value", "low", "high", "n"} <= set(table.columns):
        return None
    model = table["model"].iloc[-1]
    rows = table[(table["model"] == model) & ~table["signal"].str.contains(" - ")]
    of = {
        metric: rows[(rows["metric"] == metric) & (rows["split"] == split)].set_index("signal")
        for metric, split in ((CAUSAL, "all"), (ERROR, "wrong"))
    }
    found, located = of[CAUSAL], of[ERROR]
    if CHANCE not in found.index or CHANCE not in located.index:
        return None
    signals = [name for name in found.sort_values("value", ascending=False).index if name in located.index]
    chance = {metric: float(frame["value"][CHANCE]) for metric, frame in of.items()}
    methods = [name for name in signals if kind(name) == METHOD and name != CHANCE]
    best = located.loc[methods, "value"].idxmax()
    sentences = [
        f"In {found['n'][CHANCE]:.0f} completions of model {model}, a token that carries the "
        f"computation outranks one that does not in {_all(methods, found)} of the pairs; {chance[CAUSAL]:.0%} is chance.",
        f"Where a completion goes wrong, the first wrong token is in the signal's top fifth in {_all(methods, located)} of "
        f"{located['n'][CHANCE]:.0f}; {chance[ERROR]:.0%} is chance. {label(best)} finds it most often: {_share(located, best)}.",
    ]
    lines = [[_signal(name), _interval(found, name), _interval(located, name)] for name in signals]
    head = ["signal", "AUC of causal tokens [95 %]", "first error in top fifth [95 %]"]
    above = [name for name in _paper(methods) if found["low"][name] > chance[CAUSAL]]
    short = (
        f"{_are([label(name) for name in above])} better than chance at the tokens that matter."
        if above
        else "OAR does no better than chance."
    )
    intervals = [f"{_signal(name)} {_interval(found, name)}" for name in (*_paper(methods), CHANCE)]
    line = f"AUC of causal tokens: {'; '.join(intervals)}."
    return Answer(question, short, line, sentences, head, lines, source)


def does_it_matter(question: str, table: pd.DataFrame, source: str) -> Answer | None:
    """From differences.csv, of Table 1 or of a study: who is told apart from GRPO, or from what a study compares with."""
    rows = _compared(table)
    if rows is None or rows.empty:
        return None
    records, other = rows.to_dict("records"), rows["against"].iloc[0]
    above = list(dict.fromkeys(row["name"] for row in records if row["kind"] == METHOD and row["low"] > 0))
    short = f"{_are(above)} above {other}." if above else f"No method is shown to be above {other}."
    named = {METHOD: "Methods", CONTROL: "Controls", ORACLE: "Oracles, which know the tokens that matter"}
    sentences = [
        f"{name}: {_grouped([row for row in records if row['kind'] == of])}."
        for of, name in named.items()
        if (rows["kind"] == of).any()
    ]
    if CONTROL not in set(rows["kind"]):
        sentences.append("No control was run beside them here.")
    power = rows.dropna(subset=["smallest_shown"])
    if len(power):
        least, most = power["smallest_shown"].min(), power["smallest_shown"].max()
        sentences.append(
            f"With {power['seeds'].min()} seeds, only differences of {least:.1f} to {most:.1f} points or more would be found "
            "four times in five; what is smaller may be there and not be seen."
        )
    lines = [
        [row["name"], row["metric"], _points(row), str(row["seeds"]), row["needed"], _one_digit(row["smallest_shown"])]
        for row in records
    ]
    head = ["", "metric", f"minus {other}, points [95 %]", "seeds", "seeds to show it", "smallest shown"]
    first = [row for row in records if (row["metric"], row["kind"]) == (records[0]["metric"], records[0]["kind"])]
    values = [f"{row['name']} {_points(row)}" for row in first]
    line = f"{first[0]['metric']}, points: {'; '.join(values)}."
    return Answer(question, short, line, sentences, head, lines, source)


def _compared(table: pd.DataFrame) -> pd.DataFrame | None:
    """Name, kind, metric, difference, low, high, seeds, needed, smallest_shown, against; None for a table of another form."""
    if set(DIFFERENCES) <= set(table.columns):
        rows = table[table["benchmark"] == MEAN]
        needed = [needed_text(row) for row in rows.to_dict("records")]
        return rows.assign(name=rows["method"].map(label), needed=needed, against=rows["against"].map(label))
    if not {"condition", "arm", "metric", "difference", *ENDS, "seeds", "seeds_needed"} <= set(table.columns):
        return None
    # A study (experiments/study/studies.py): arms, most of them methods, under conditions; the page says what they are
    # compared with.
    name = table["arm"].map(label)
    if table["condition"].nunique() > 1:
        name = name + ", " + table["condition"]
    needed = ["" if pd.isna(count) else f"{count:,.0f}" for count in table["seeds_needed"]]
    return table.assign(
        name=name, kind=table["arm"].map(kind), needed=needed, smallest_shown=float("nan"), against="the reference"
    )


def what_it_costs(question: str, table: pd.DataFrame, source: str) -> Answer | None:
    """From bench_importance.csv: whole training steps in GRPO's."""
    if not {"part", "method", "metric", "value"} <= set(table.columns):
        return None
    steps = table[table["part"] == "steps"].pivot_table(index="method", columns="metric", values="value", sort=False)
    if not {"step_ratio", "step_ratio_q1", "step_ratio_q3"} <= set(steps.columns):
        return None
    methods = [name for name in steps.sort_values("step_ratio").index if name != "grpo"]
    ratio = {name: steps.loc[name, ["step_ratio", "step_ratio_q1", "step_ratio_q3"]].tolist() for name in methods}
    cells = {label(name): f"{middle:.2f} [{low:.2f}, {high:.2f}]" for name, (middle, low, high) in ratio.items()}
    ends = [f"{ratio[name][0]:.2f} ({label(name)})" for name in (methods[0], methods[-1])]
    values = ", ".join(f"{name} {cell}" for name, cell in cells.items())
    return Answer(
        question,
        f"A step takes {' to '.join(ends)} of GRPO's.",
        f"{values}.",
        [f"Median seconds of a whole training step with the engine, in GRPO's, with quartiles: {values}."],
        ["", "step / GRPO's [quartiles]"],
        [[name, cell] for name, cell in cells.items()],
        source,
    )


def what_became_of_the_claims(question: str, table: pd.DataFrame, source: str) -> Answer | None:
    """From claims.csv: how many were borne out, and each that was tested."""
    if not {"paper_claim", "verdict", "metric", "value", "low", "high", "unit", "seeds"} <= set(table.columns):
        return None
    counts = ", ".join(f"{(table['verdict'] == verdict).sum()} {verdict}" for verdict in VERDICTS)
    tested = table[table["verdict"] != NOT_RUN]
    lines = [
        [
            f"{SIGNS.get(row['verdict'], '')} {row['verdict']}",
            row["paper_claim"],
            row["metric"] if pd.notna(row["metric"]) else "",
            f"{row['value']:.3g}{_ends(row)} {row['unit']}",
            str(row["seeds"]),
        ]
        for row in tested.to_dict("records")
    ]
    head = ["verdict", "claim of the paper", "metric", "measured here [95 %]", "seeds"]
    borne_out, open_ones = ((tested["verdict"] == verdict).sum() for verdict in (REPRODUCED, TOO_FEW))
    short = f"{borne_out} of the {len(tested) - open_ones} tests that could be made bear a claim out."
    if open_ones:
        short += f" For {open_ones} more there are too few seeds, or too short runs, to tell."
    line = f"{len(table)} tests: {counts}."
    by_verdict = [(verdict, tested[tested["verdict"] == verdict]["paper_claim"].unique()) for verdict in VERDICTS]
    sentences = [f"{verdict.capitalize()}: {'; '.join(claims)}." for verdict, claims in by_verdict if len(claims)]
    sentences.append(
        f"{line} Model and task are not the paper's unless the page says so; there stand the rules too, "
        "and why a test was not run. Where a claim is named twice, the two metrics disagree."
    )
    return Answer(question, short, line, sentences, head, lines, source)


QUESTIONS: list[tuple[str, str, Callable[[str, pd.DataFrame, str], Answer | None]]] = [
    ("recall/recall.csv", "Which tokens got the credit?", which_tokens),
    ("*/differences.csv", "Does it matter?", does_it_matter),
    ("bench_importance/bench_importance.csv", "What does it cost?", what_it_costs),
    ("*/claims.csv", "What became of the paper's claims?", what_became_of_the_claims),
]


def _read(file: Path) -> pd.DataFrame | None:
    try:
        found = pd.read_csv(file)
    except (OSError, ValueError):  # of which pandas' own errors are some
        return None
    return None if found.empty else found


def _grouped(records: Sequence[dict[Any, Any]]) -> str:
    """By what their intervals say: who is above, below, or neither."""
    groups: dict[str, list[str]] = {"above": [], "below": [], "not told apart": [], "without interval": []}
    for row in records:
        name = "above" if row["low"] > 0 else "below" if row["high"] < 0 else "not told apart"
        found = groups["without interval" if pd.isna(row["low"]) else name]
        found.append(f"{row['name']} ({row['metric']} {_points(row)})")
    return "; ".join(f"{name}: {', '.join(found)}" for name, found in groups.items() if found)


def _ends(row: dict[Any, Any]) -> str:
    return "" if pd.isna(row["low"]) else f" [{row['low']:.3g}, {row['high']:.3g}]"


def _points(row: dict[Any, Any]) -> str:
    interval = "" if pd.isna(row["low"]) else f" [{row['low']:+.1f}, {row['high']:+.1f}]{one_seed(row)}"
    return f"{row['difference']:+.1f}{interval}"


def _interval(frame: pd.DataFrame, name: str) -> str:
    return f"{frame['value'][name]:.2f} [{frame['low'][name]:.2f}, {frame['high'][name]:.2f}]"


def _signal(name: str) -> str:
    return f"{name} (chance)" if name == CHANCE else label(name)


def _share(frame: pd.DataFrame, name: str) -> str:
    return f"{frame['value'][name]:.0%}"


def _all(names: Sequence[str], frame: pd.DataFrame) -> str:
    """The paper's two: the others stand in the picture."""
    return " and ".join(f"{_share(frame, name)} ({label(name)})" for name in _paper(names))


def _paper(names: Sequence[str]) -> list[str]:
    return [name for name in ("oar_p", "oar_g") if name in names] or list(names[:2])


def _are(names: Sequence[str]) -> str:
    return f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'}"


def _one_digit(value: float) -> str:
    return "" if pd.isna(value) else f"{value:.1f}"
