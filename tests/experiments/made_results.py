"""A folder of results made by hand: what experiments leave behind, and what should not be there."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image

from experiments.inspect_credit.page import inspector_html
from experiments.report.page import Section
from oar.analysis.reports.differences import DIFFERENCES
from oar.analysis.reports.page import UNWRITTEN, StudyPage, write_study
from tests.experiments.inspector_pages import small_page

ATTACK = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\"> {{js}}"
CONCLUSION = "Boost **alone** is enough."
PROVENANCE = {
    "command": "python -m experiments.x",
    "git_commit": "c0ffee123456",
    "started": "2026-01-02T03:04:05+00:00",
}
SECTIONS = [
    Section("Which tokens?", {"inspector": "Token by token?", "recall": "Which signal?", "error_location": "Where?"}),
    Section("Does it matter?", {"embedded": "Told apart?", "gating": "What does the gate do?"}),
]
RECALL = """# Oracle recall

**Question.** Which signal?

**What was run.** Much.

![recall](recall.png)

*recall*

## Numbers

### Deeper

| a | b |
| --- | --- |
| x | 1 |

Text with ![another](second.png) inside.
"""
TABLE1 = f"""# Table 1

## avg@4

| method | mean | steps |
| --- | --- | --- |
| GRPO | 9.4 ± 0.3, n=3 | 1,579 |
| OAR-G | 67.8 ± 0.4, n=3 |  |
| OAR-P | -3.9 [-11.7, +13.7] | 40 |
| {ATTACK} | 20 | 500 |

## pass@1

Nothing [ran](../recall/recall.md), see [the gate](../gating/gating.md),
[docs](../../docs/METHOD.md#x), [bad](javascript:alert(1)), [mail](mailto:a@b.c).

## Provenance

| key | value |
| --- | --- |
| left | out |

# What the paper reports

A second heading of the first level.
"""


def picture(path: Path, seed: int, *, size: tuple[int, int] = (40, 30)) -> None:
    """A real PNG with transparent pixels."""
    values = np.random.default_rng(seed).integers(0, 4, size=(size[1], size[0], 4), dtype=np.uint8) * 80
    Image.fromarray(values, "RGBA").save(path)


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
    recall = write_folder(
        results / "recall",
        RECALL,
    )
    recall_table().to_csv(recall / "recall.csv", index=False)
    for name, seed in (("recall.png", 1), ("second.png", 2), ("unnamed.png", 3)):
        picture(recall / name, seed)
    embedded = write_folder(results / "embedded", TABLE1)
    pd.DataFrame(
        [
            difference("oar_g", "method", "avg@k", -1.54, -2.1, -0.7),
            difference("oar_p", "method", "avg@k", -0.46, -1.2, 0.3),
            difference("shuffled", "control", "avg@k", 1.25, 0.4, 2.2),
        ]
    ).to_csv(embedded / "differences.csv", index=False)
    claims = {
        "paper_claim": ["A > B", "C is 5"],
        "verdict": ["not reproduced", "not run"],
        "metric": ["avg@k", None],
        "unit": "points",
    }
    pd.DataFrame(
        claims | {"value": [-1.5, None], "low": [-2.0, None], "high": [-1.0, None], "seeds": ["1, 2", None]}
    ).to_csv(embedded / "claims.csv", index=False)
    gating = results / "gating"
    gating.mkdir()
    picture(gating / "gating.png", 4)
    pd.DataFrame({"a": [1]}).to_parquet(gating / "gating.parquet")
    measured = "| gate | accuracy |\n| --- | --- |\n| both | 60.1 |"
    words = ("What does the gate do?", "That both are needed.", "Everything.", measured)
    write_study(StudyPage("gating", "The gate", *words, {"gating.png": "frontier"}, "make x", PROVENANCE), gating)
    page = gating / "gating.md"
    page.write_text(page.read_text().replace(UNWRITTEN, CONCLUSION))
    (results / "inspector").mkdir()
    (results / "inspector" / "step_000001.html").write_text(inspector_html(small_page()))
    (results / "reference").mkdir()
    write_folder(
        results / "odd_one",
        f"{ATTACK}\n\n![out](../recall/recall.png) ![web](https://example.org/x.png) ![gone](gone.png)\n",
        "text",
    )
    (results / "empty").mkdir()
    write_folder(results / "two", "# Two", table=False)
    (results / "two" / "more.md").write_text("# More")
    write_folder(results / "bytes", "", table=False)
    (results / "bytes" / "bytes.md").write_bytes(b"\xff\xfe\x00")
    write_folder(results / "untabled", "# Untabled", table=False)
    return results
