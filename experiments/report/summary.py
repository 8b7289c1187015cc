"""What a reader sees first: each of the main questions, answered with numbers that are read from tables of results/.

An answer says "above" or "below" only where the interval leaves the other value out, and of a study only where Holm's p, which
counts how many were compared, does so too. What was not measured is reported as missing, never guessed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from oar.analysis.claims.claims import NOT_REPRODUCED, NOT_RUN, REPRODUCED, TOO_FEW, VERDICTS, WITHIN
from oar.analysis.reports.differences import DIFFERENCES, needed_text, one_seed
from oar.analysis.reports.methods import GRPO, METHOD, kind, label
from oar.analysis.reports.page import interval_text
from oar.evaluation.evaluate import MEAN
from oar.statistics.intervals import CONFIDENCE, ENDS

TABLE1 = "table1"  # folder of results/: its answers come first
CHANCE = "uniform"  # its constant signal
WHOLE_STEPS = ("steps", "methods")  # parts of the benchmark that take them
SIGNS = {REPRODUCED: "✓", WITHIN: "≈", NOT_REPRODUCED: "✗", TOO_FEW: "?", NOT_RUN: "–"}


class Told(NamedTuple):
    """An answer in a few words, its one number, a line of numbers with intervals, and all of them as a table of text."""

    short: str
    number: str
    line: str
    table: pd.DataFrame


@dataclass(frozen=True, slots=True)
class Question:
    """Asked of every file of results/ that fits `pattern` and has the columns of one of `forms`."""

    text: str
    pattern: str
    forms: Sequence[Sequence[str]]
    answer: Callable[[pd.DataFrame], Told | None]


@dataclass(frozen=True, slots=True)
class Answer:
    """What was told on a question, and the file that it was read from."""

    question: str
    told: Told
    source: str

    @property
    def folder(self) -> str:
        """Of results/, where the source lies."""
        return self.source.rpartition("/")[0]


def summary(results: Path) -> tuple[list[Answer], list[str]]:
    """All answers that the tables give, in the order of the questions, and a sentence for each that is missing."""
    answers, missing = [], []
    for question in QUESTIONS:
        found = {file.parent.relative_to(results).as_posix(): file for file in _files(results, question.pattern)}
        if not found:
            missing.append(f"“{question.text}” has no answer on top: there is no {question.pattern}.")
        for folder, file in sorted(found.items(), key=lambda one: (one[0] != TABLE1, one[0])):
            told = _told(question, file)
            asked = question.text if folder == TABLE1 or "*" not in question.pattern else f"{question.text} ({folder})"
            if told is None:
                missing.append(f"{folder}/{file.name} does not hold what “{asked}” is answered from.")
            else:
                answers.append(Answer(asked, told, f"{folder}/{file.name}"))
    return answers, missing


def _files(results: Path, pattern: str) -> list[Path]:
    """Those that fit; where any folder may have one, in folders of folders too."""
    patterns = [pattern, f"*/{pattern}"] if pattern.startswith("*") else [pattern]
    return [file for one in patterns for file in results.glob(one)]


def _told(question: Question, file: Path) -> Told | None:
    try:
        table = pd.read_csv(file)
    except (OSError, ValueError):  # of which pandas' own errors are some
        return None
    fits = len(table) and any(set(form) <= set(table.columns) for form in question.forms)
    return question.answer(table) if fits else None


def which_tokens(table: pd.DataFrame) -> Told | None:
    """From recall.csv: which signal finds the causal tokens and the first error, of its last model."""
    model = table["model"].iloc[-1]
    rows = table[(table["model"] == model) & ~table["signal"].str.contains(" - ")].set_index("signal")
    found = rows[(rows["metric"] == "causal_auc") & (rows["split"] == "all")].sort_values("value", ascending=False)
    located = rows[(rows["metric"] == "error_top_fifth") & (rows["split"] == "wrong")]
    if CHANCE not in found.index or CHANCE not in located.index:
        return None
    signals = [name for name in found.index if name in located.index]
    names = {name: label(name) for name in signals}
    of_paper = [name for name in ("oar_p", "oar_g") if name in signals]
    if not of_paper:
        return None
    above = [label(name) for name in of_paper if found["low"][name] > found["value"][CHANCE]]
    cells = {
        f"signal, model {model}": names.values(),
        f"AUC of causal tokens [95 %], {found['n'][CHANCE]:.0f} completions": [_of(found, name) for name in signals],
        f"first error in top fifth [95 %], {located['n'][CHANCE]:.0f} wrong ones": [
            _of(located, one) for one in signals
        ],
    }
    short = (
        f"{_are(above)} better than chance at the tokens that matter." if above else "OAR does no better than chance."
    )
    line = "; ".join(f"{names[name]} {_of(found, name)}" for name in (*of_paper, CHANCE))
    best = max(of_paper, key=lambda name: found["value"][name])
    number = f"AUC {_of(found, best)} ({names[best]})"
    return Told(short, number, f"AUC of causal tokens: {line}.", pd.DataFrame(cells))


def does_it_matter(table: pd.DataFrame) -> Told | None:
    """From differences.csv, of Table 1 or of a study: who is told apart from GRPO, or from what a study compares with."""
    rows = _compared(table)
    if rows.empty:
        return None
    rows = rows.assign(points=[_points(row) for row in rows.to_dict("records")], shown=rows.apply(_shown, axis=1))
    # Of controls and oracles only where no method was compared.
    of = METHOD if (rows["kind"] == METHOD).any() else rows["kind"].iloc[0]
    other, chosen = rows["against"].iloc[0], rows[rows["kind"] == of]
    above = _above(chosen)
    short = f"{_are(above)} above {other}." if above else f"No {of} is shown to be above {other}."
    first = chosen[chosen["metric"] == rows["metric"].iloc[0]]
    line = "; ".join(f"{name} {points}" for name, points in zip(first["name"], first["points"], strict=True))
    titles = {
        **{"name": "", "kind": "kind", "metric": "metric", "points": f"minus {other}, points [95 %]", "shown": "shown"},
        **{"seeds": "seeds", "needed": "seeds to show it", "smallest_shown": "smallest shown"},
    }
    largest = first.loc[first["difference"].abs().idxmax()]
    number = f"{largest['points']} points ({largest['name']})"
    rows["smallest_shown"] = ["" if pd.isna(value) else f"{value:.1f}" for value in rows["smallest_shown"]]
    told = f"{first['metric'].iloc[0]}, points: {line}."
    return Told(short, number, told, rows[[*titles]].rename(columns=titles))


def _compared(table: pd.DataFrame) -> pd.DataFrame:
    """Name, kind, metric, difference, low, high, seeds, needed, smallest_shown, against."""
    if set(DIFFERENCES) <= set(table.columns):
        rows = table[(table["benchmark"] == MEAN) & (table["against"] == GRPO)]
        needed = [needed_text(row) for row in rows.to_dict("records")]
        return rows.assign(name=rows["method"].map(label), needed=needed, against=rows["against"].map(label))
    # A study (experiments/study/studies.py): arms, most of them methods, under conditions; the page says what they are
    # compared with.
    several = table["condition"].nunique() > 1
    name = table["arm"].map(label) + (", " + table["condition"] if several else "")
    needed = [
        (f"{count:,.0f}" if pd.notna(count) else "more than 10,000") if seeds > 1 else ""
        for count, seeds in zip(table["seeds_needed"], table["seeds"], strict=True)
    ]
    known: dict[str, Any] = {"kind": table["arm"].map(kind), "smallest_shown": float("nan"), "against": "the reference"}
    return table.assign(name=name, needed=needed, **known)


def what_it_costs(table: pd.DataFrame) -> Told | None:
    """From bench_importance.csv: whole training steps in GRPO's."""
    whole = table[table["part"].isin(WHOLE_STEPS) & (table["method"] != GRPO)]
    steps = whole.pivot_table(index="method", columns="metric", values="value", sort=False)
    if not {"step_ratio", "step_ratio_q1", "step_ratio_q3"} <= set(steps.columns):
        return None
    steps = steps.sort_values("step_ratio")
    names = [label(str(name)) for name in steps.index]
    cells = [
        f"{middle:.2f} {interval_text(low, high, '.2f')}"
        for middle, low, high in steps[["step_ratio", "step_ratio_q1", "step_ratio_q3"]].to_numpy()
    ]
    ends = [f"{steps['step_ratio'].iloc[at]:.2f} ({names[at]})" for at in (0, -1)]
    number = f"{steps['step_ratio'].iloc[-1]:.2f} times GRPO's step ({names[-1]})"
    line = ", ".join(f"{name} {cell}" for name, cell in zip(names, cells, strict=True))
    frame = pd.DataFrame({"": names, "median step with the engine / GRPO's [quartiles]": cells})
    told = f"{line}. Measured by itself; Table 1 has the overhead of its own runs."
    return Told(f"A step takes {' to '.join(ends)} of GRPO's.", number, told, frame)


def what_became_of_the_claims(table: pd.DataFrame) -> Told | None:
    """From claims.csv: how many were borne out, and each that was tested."""
    counts = {verdict: int((table["verdict"] == verdict).sum()) for verdict in VERDICTS}
    tested = table[table["verdict"] != NOT_RUN]
    judged = len(tested) - counts[TOO_FEW]
    short = f"{counts[REPRODUCED]} of the {judged} tests that could be made bear a claim out." if judged else ""
    if counts[TOO_FEW]:
        short += f" For {counts[TOO_FEW]}{' more' * bool(judged)} there are too few seeds, or too short runs, to tell."
    told = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    line = f"{len(table)} tests: {told}. Model and task are not the paper's unless the page says so; there stand the rules too."
    rows = [
        {
            "verdict": f"{SIGNS.get(row['verdict'], '')} {row['verdict']}",
            "claim of the paper": row["paper_claim"],
            "metric": row["metric"] if pd.notna(row["metric"]) else "",
            "measured here [95 %]": f"{row['value']:.3g} {interval_text(row['low'], row['high'], '.3g')} {row['unit']}",
            "seeds": str(row["seeds"]),
        }
        for row in tested.to_dict("records")
    ]
    number = f"{counts[REPRODUCED]} of {judged}" if judged else "no verdict"
    return Told(short.lstrip() or "No test could be made.", number, line, pd.DataFrame(rows))


STUDY = ("condition", "arm", "metric", "difference", *ENDS, "seeds", "seeds_needed", "p_holm")
QUESTIONS = [
    Question(
        "Which tokens got the credit?",
        "recall/recall.csv",
        [("model", "split", "signal", "metric", "value", "low", "high", "n")],
        which_tokens,
    ),
    Question("Does it matter?", "*/differences.csv", [DIFFERENCES, STUDY], does_it_matter),
    Question(
        "What does it cost?",
        "bench_importance/bench_importance.csv",
        [("part", "method", "metric", "value")],
        what_it_costs,
    ),
    Question(
        "What became of the paper's claims?",
        "*/claims.csv",
        [("paper_claim", "verdict", "metric", "value", "low", "high", "unit", "seeds")],
        what_became_of_the_claims,
    ),
]


def _shown(row: "pd.Series[Any]") -> str:
    if pd.isna(row["low"]):
        return "without interval"
    side = "above" if row["low"] > 0 else "below" if row["high"] < 0 else "not told apart"
    by_chance = row.get("p_holm", 0.0) >= 1 - CONFIDENCE and side != "not told apart"
    return f"{side} alone, not among so many" if by_chance else side


def _above(rows: pd.DataFrame) -> list[str]:
    """By name what is shown to be above; with its metrics where it is not under all."""
    shown = rows[rows["shown"] == "above"].groupby("name", sort=False)["metric"].unique()
    every = rows["metric"].nunique()
    return [str(name) if len(of) == every else f"{name} ({', '.join(of)})" for name, of in shown.items()]


def _points(row: dict[Any, Any]) -> str:
    return f"{row['difference']:+.1f} {interval_text(row['low'], row['high'])}".rstrip() + one_seed(row)


def _of(frame: pd.DataFrame, name: str) -> str:
    return f"{frame['value'][name]:.2f} {interval_text(frame['low'][name], frame['high'][name], '.2f')}"


def _are(names: Sequence[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last} are" if first else f"{last} is"
