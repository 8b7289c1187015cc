"""A folder of results made by hand: what experiments leave behind, and what should not be there."""

import json
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.report.page import Section
from oar.analysis.reports.differences import DIFFERENCES
from oar.analysis.reports.page import CLOSED, OPENED, PAGE, UNWRITTEN, write_page

ATTACK = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\"> {{ made }}"
CONCLUSION = "Boost **alone** is enough."
PROVENANCE = {
    "command": "python -m experiments.x",
    "git_commit": "c0ffee123456",
    "started": "2026-01-02T03:04:05+00:00",
}
SECTIONS = [
    Section(
        "Which tokens?", {"inspect_credit": "Token by token?", "recall": "Which signal?", "error_location": "Where?"}
    ),
    Section("Does it matter?", {"table1": "Told apart?", "gating": "What does the gate do?"}),
]
RECALL = """# Oracle recall

![how well](recall.png)

Text with ![another](second.png) inside.
"""
TABLE1 = f"""# Table 1 {ATTACK}

{OPENED}
Nothing [ran](../recall/recall.md#numbers), see [docs](../../docs/METHOD.md), [bad](javascript:alert(1)).

{ATTACK}
{CLOSED}
"""


def write_folder(folder: Path, text: str, provenance: object = PROVENANCE, table: bool = True) -> Path:
    """A folder with a page of this text."""
    folder.mkdir(parents=True)
    (folder / f"{folder.name}.md").write_text(text)
    (folder / "provenance.json").write_text(json.dumps(provenance))
    if table:
        pd.DataFrame({"a": [1]}).to_csv(folder / f"{folder.name}.csv", index=False)
    return folder


def recall_table() -> pd.DataFrame:
    """Two models, three signals and a difference; chance is 0.5 and 0.2."""
    values = {
        "uniform": (0.5, 0.2),
        "oar_g": (0.6, 0.25),
        "oar_p": (0.73, 0.55),
        "random": (0.49, 0.18),
        "oar_p - oar_g": (0.1, 0.3),
    }
    rows = [
        {"model": model, "split": split, "signal": signal, "metric": metric, "value": value - worse, "n": n}
        for model, worse in (("base", 0.1), ("trained", 0.0))
        for signal, pair in values.items()
        for metric, split, value, n in (("causal_auc", "all", pair[0], 598), ("error_top_fifth", "wrong", pair[1], 196))
    ]
    frame = pd.DataFrame(rows)
    return frame.assign(low=frame["value"] - 0.02, high=frame["value"] + 0.02)


def difference(
    method: str, of: str, metric: str, value: float, low: float | None, high: float | None
) -> dict[str, Any]:
    """A row of differences.csv, the mean over benchmarks of three seeds."""
    known = dict.fromkeys(DIFFERENCES) | {
        "metric": metric,
        "method": method,
        "kind": of,
        "against": "grpo",
        "benchmark": "mean",
        "seeds": 3,
    }
    sd = {"sd": 0.5, "seeds_needed": 9, "seeds_needed_from": 4, "seeds_needed_to": 310, "smallest_shown": 1.6}
    return known | sd | {"difference": value, "low": low, "high": high, "interval_over": "problems and seeds"}


def make_results(results: Path) -> Path:
    """Everything at once: whole pages, and below them what is broken or foreign."""
    recall = write_folder(results / "recall", RECALL)
    recall_table().to_csv(recall / "recall.csv", index=False)
    for name in ("recall.png", "second.png", "unnamed.png"):
        (recall / name).touch()
    table1 = write_folder(results / "table1", TABLE1, PROVENANCE | {"command": ATTACK})
    pd.DataFrame(
        [
            difference("oar_g", "method", "avg@k", -1.54, -2.1, -0.7),
            difference("oar_p", "method", "avg@k", -0.46, -1.2, 0.3),
            difference("shuffled", "control", "avg@k", 1.25, 0.4, 2.2),
        ]
    ).to_csv(table1 / "differences.csv", index=False)
    claims = {
        "paper_claim": [f"A > B {ATTACK}", "C is 5"],
        "verdict": ["not reproduced", "not run"],
        "metric": ["avg@k", None],
        "unit": "points",
    }
    pd.DataFrame(
        claims | {"value": [-1.5, None], "low": [-2.0, None], "high": [-1.0, None], "seeds": ["1, 2", None]}
    ).to_csv(table1 / "claims.csv", index=False)
    gating = results / "gating"
    gating.mkdir()
    (gating / "gating.png").touch()
    pd.DataFrame({"a": [1]}).to_parquet(gating / "gating.parquet")
    measured = "| gate | accuracy |\n| --- | --- |\n| both | 60.1 |"
    said = {"title": "The gate", "question": "What does it do?", "paper": "That both are needed.", "ran": "Everything."}
    pictures = {"gating.png": "frontier"}
    page = write_page(gating / "gating.md", PAGE, PROVENANCE, **said, measured=measured, pictures=pictures)
    page.write_text(page.read_text().replace(UNWRITTEN, CONCLUSION))
    (results / "inspect_credit").mkdir()
    (results / "inspect_credit" / "step_000001.html").touch()
    (results / "reference").mkdir()
    write_folder(
        results / "odd_one",
        f"# {ATTACK}\n\n![out](../recall/recall.png) ![web](https://example.org/x.png) ![gone](gone.png)\n",
        "text",
    )
    (results / "empty").mkdir()
    write_folder(results / "two", "# Two", table=False)
    (results / "two" / "more.md").write_text("# More")
    write_folder(results / "bytes", "", table=False)
    (results / "bytes" / "bytes.md").write_bytes(b"\xff\xfe\x00")
    write_folder(results / "untabled", "# Untabled", table=False)
    return results
