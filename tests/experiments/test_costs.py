"""From what the benchmark of importance measured to its numbers and files, by hand."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from experiments.bench_importance.costs import (
    cheapest_faithful,
    embedded_rows,
    method_rows,
    step_rows,
    summary,
    synthetic_rows,
    tidy,
)
from experiments.bench_importance.page import write_bench

NUMBERS = {
    "oar_g_step_ratio": 1.1,
    "oar_gn_step_ratio": 1.2,
    "oar_p_exact_step_ratio": 2.5,
    "oar_p_window_step_ratio": 1.5,
    "oar_p_window_spearman": -0.05,
    "exact_over_plain_256": 0.5,
    "exact_token_over_plain_256": 2.0,
    "window_growth_256_1024": 5.0,
    "best_one_backward_spearman": 0.9,
    "peak_extra_memory_ratio": 1.2,
}
OF_METHODS = {
    "rlsd_step_ratio": 1.1,
    "rlsd_peak_extra_memory_ratio": 0.5,
    "vineppo_step_ratio": 1.5,
    "vineppo_peak_extra_memory_ratio": 0.0,
    "vineppo_continuation_tokens": 900.0,
}
IMPORTANCE = {
    "grpo": [[1.0] * 5] * 2,
    "oar_p": [[1.0, 2, 3, 4, 5]] * 2,
    "window8": [[1.0, 2, 3, 5, 4], [5.0, 4, 3, 2, 1]],
}
IMPORTANCE |= {"oar_g": [[5.0, 4, 3, 2, 1]] * 2, "oar_gn": [[2.0, 1, 3, 4, 5]] * 2, "plain": IMPORTANCE["oar_p"]}


def synthetic_case(length: int, credit: float) -> dict[str, Any]:
    """GRPO takes 1 s, exact OAR-P 3 s; the first round is slow and not counted where there is another."""
    return {
        "size": "embedded",
        "length": length,
        "completions": 2,
        "seconds": {
            "grpo": {"update": [9.0, 1.0, 1.0], "credit": [9.0, 0.01, 0.01]},
            "oar_p": {"update": [9.0, 3.0, 4.0], "credit": [9.0, 2.0, 3.0]},
            "window8": {"update": [9.0, 2.0, 2.0], "credit": [9.0, credit, credit]},
            "plain": {"update": [8.0], "credit": [5.0]},
        },
        "skipped": {},
        "memory": {
            name: {
                "tokens": tokens,
                "update_peak": 10 * 2**20,
                "credit_peak": peak * 2**20,
                "importance": IMPORTANCE[name],
                "weights": IMPORTANCE[name],
            }
            for name, peak, tokens in (("grpo", 0, 100), ("oar_p", 12, 300), ("window8", 4, 200), ("plain", 3, 900))
        },
    }


def table() -> pd.DataFrame:
    names = ("grpo", "oar_g", "oar_gn", "oar_p", "window8")
    embedded = {
        "length": 50.0,
        "completions": 2,
        "problems": ["a", "b"],
        "seconds": {name: {"update": [5.0, 1.0 + at], "credit": [4.0, 1.0]} for at, name in enumerate(names)},
        "tokens": dict.fromkeys(names, 10),
        "importance": {name: IMPORTANCE[name] for name in names},
        "weights": {name: IMPORTANCE[name] for name in names},
    }
    stages = dict.fromkeys(("grading", "scoring", "importance", "update", "sync"), 0.0)
    totals = {"grpo": 2.0, "oar_g": 2.2, "oar_gn": 2.4, "oar_p": 5.0, "window8": 3.0}
    rounds = [
        {name: {"total": total * slow, "generation": slow, **stages} for name, total in totals.items()}
        for slow in (1.0, 3.0)
    ]
    methods = {
        "grpo": {"total": 2.0, "generation": 1.0},
        "rlsd": {"total": 2.2, "generation": 1.0},
        "vineppo": {"total": 9.0, "generation": 1.0, "continuations": 6.0},
    }
    apart = {
        name: {"peak": peak * 2**20, "length": 50.0, "continuation_tokens": tokens}
        for name, peak, tokens in (("grpo", 4, None), ("rlsd", 6, None), ("vineppo", 4, 900))
    }
    of_methods = method_rows([{name: {**one, **stages} for name, one in methods.items()}], apart)
    synthetic = [
        row for length, credit in ((256, 0.1), (1024, 0.5)) for row in synthetic_rows(synthetic_case(length, credit))
    ]
    return tidy([*synthetic, *embedded_rows(embedded), *step_rows(rounds, 50.0), *of_methods])


def value(rows: pd.DataFrame, *where: object) -> float:
    (found,) = rows.set_index(["part", "length", "method", "metric"])["value"].loc[[where]]
    return float(found)


def test_statistics_by_hand() -> None:
    rows = table()
    assert list(rows.columns) == ["part", "size", "length", "method", "metric", "value"]
    assert value(rows, "synthetic", 256, "oar_p", "update_s") == 3.5
    assert value(rows, "synthetic", 256, "oar_p", "update_ratio") == 3.5
    assert value(rows, "synthetic", 256, "oar_p", "update_ratio_q1") == 3.25
    assert value(rows, "synthetic", 256, "oar_p", "rounds") == 2
    assert value(rows, "synthetic", 256, "plain", "rounds") == 1
    assert value(rows, "synthetic", 256, "oar_p", "credit_s_per_completion") == 1.25
    assert value(rows, "synthetic", 256, "oar_p", "over_plain") == 2.5 / 5, "its median: plain has one round"
    assert value(rows, "synthetic", 256, "plain", "update_ratio") == 8, "GRPO's first round does not count"
    assert value(rows, "synthetic", 256, "oar_p", "memory_ratio") == 1.2
    assert value(rows, "embedded", 50, "window8", "spearman") == pytest.approx((0.9 - 1) / 2)
    assert value(rows, "embedded", 50, "oar_gn", "top_fifth_overlap") == 1
    assert value(rows, "embedded", 50, "oar_gn", "weights_correlation") == pytest.approx(0.9)
    assert value(rows, "embedded", 50, "grpo", "weights_correlation") == 0
    assert value(rows, "steps", 50, "oar_p", "step_ratio") == 2.5
    assert value(rows, "steps", 50, "oar_p", "learner_ratio") == 4
    assert value(rows, "steps", 50, "oar_p", "total_s") == 10
    assert value(rows, "methods", 50, "vineppo", "total_s") == 3, "without the seconds of the continuations"
    assert value(rows, "methods", 50, "vineppo", "learner_ratio") == 2
    assert value(rows, "methods", 50, "rlsd", "peak_extra_mib") == 2


def test_the_ten_numbers_and_those_of_every_method() -> None:
    rows = table()
    assert summary(rows, "window8") == pytest.approx(NUMBERS | OF_METHODS)
    nothing = summary(rows[rows["part"] == "nothing"], None)
    assert nothing == dict.fromkeys(NUMBERS)


def test_the_cheapest_faithful_variant() -> None:
    rows = table()
    candidates = ["oar_p", "oar_gn", "window8"]
    assert cheapest_faithful(rows, candidates, 0.85) == "oar_gn"
    assert cheapest_faithful(rows, candidates, 0.95) == "oar_p"
    assert cheapest_faithful(rows, ["window8"], 0.85) is None
    assert cheapest_faithful(rows[rows["part"] == "synthetic"], candidates, 0.85) is None


def test_the_files_show_what_was_missed_and_what_was_left_out(tmp_path: Path) -> None:
    run = {"faithful": 0.9, "step_rounds": 2, "prompt_tokens": 40, "answer_tokens": 2, "threads": 1, "dtype": "float32"}
    run |= {"probe": "as_mean", "sizes": "`embedded` is small", "kept": "", "completions": "2 completions"}
    run |= {"profile": "embedded", "model": "embedded"}
    provenance = {"command": "python it", "versions": {"torch": "2"}, "gpu": None, "cpu": "a CPU", "cores": 2}
    rows = table()
    rows = rows[(rows["method"] != "plain") & ~rows["metric"].str.endswith("over_plain")]
    numbers = write_bench(
        rows, tmp_path, chosen="window8", skipped={"embedded, 1024": {"plain": 77.0}}, run=run, provenance=provenance
    )
    assert numbers == pytest.approx(
        NUMBERS | OF_METHODS | dict.fromkeys(("exact_over_plain_256", "exact_token_over_plain_256"))
    )
    made = {f"bench_importance.{kind}" for kind in ("csv", "md", "png")}
    assert {path.name for path in tmp_path.iterdir()} == made | {"provenance.json"}
    assert (tmp_path / "bench_importance.png").read_bytes().startswith(b"\x89PNG")
    assert np.allclose(pd.read_csv(tmp_path / "bench_importance.csv")["value"], rows["value"])
    record = json.loads((tmp_path / "provenance.json").read_text())
    assert record["chosen"] == "window8"
    assert record["summary"] == numbers
    text = (tmp_path / "bench_importance.md").read_text()
    assert "| `oar_p_exact_step_ratio` | 4.2 (the paper's) | <= 2 | 2.50 | missed by 0.50 |" in text
    assert "| `oar_g_step_ratio` | 1.4 (the paper's own measurement) | <= 1.15 | 1.10 | yes |" in text
    assert "| `oar_p_window_spearman` |  | >= 0.9 | -0.05 | missed by 0.95 |" in text
    assert "| `exact_over_plain_256` |  | <= 0.45 |  | not measured |" in text
    assert "embedded 256 to 1024: 5.00x" in text
    (line,) = [line for line in text.splitlines() if line.startswith("| `vineppo` |")]
    assert line.endswith("| 4.0 | 0.0 | 0.00 | 900 |")
    assert "embedded 256: 12.0 / 10.0" in text
    assert "`plain` about 77 s" in text
    (blank,) = [line for line in text.splitlines() if line.startswith("| `plain` |")]
    assert set(blank.removeprefix("| `plain` |")) == {" ", "|"}

    steps = rows[rows["part"] == "methods"]
    other = run | {"profile": "laptop", "model": "smollm2"}
    write_bench(steps, tmp_path, chosen=None, skipped={}, run=other, provenance=provenance)
    text = (tmp_path / "bench_importance.md").read_text()
    assert "| `vineppo` |" in text
    assert "## Goals" not in text, "they are the embedded model's"
    assert "profile laptop" in text
    assert "`smollm2`" in text
