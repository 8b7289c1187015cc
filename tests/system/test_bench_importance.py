"""The benchmark of importance, small, with the real engine: its last line, and that a second call measures nothing."""

import json
from pathlib import Path

import pandas as pd
import pytest

from oar.rollout.server.engine import VllmEngine
from tests.experiments.test_costs import NUMBERS, OF_METHODS
from tests.programs import run

pytestmark = [pytest.mark.slow, pytest.mark.engine, pytest.mark.system]


def options(folder: Path, url: str) -> list[str]:
    sizes = ("embedded.lengths={64:1,256:0,1024:0}", "half_billion_shape.lengths={64:0,256:0,1024:0}")
    return [
        *(f"output_dir={folder}", f"overrides=['probe=as_mean','rollout.url={url}','learner.batch_size=32']"),
        *(
            "synthetic_methods=[grpo,oar_p,window8]",
            "step_methods=[grpo,oar_g,oar_p]",
            "~methods",
            "+methods={rlsd:['method=rlsd'],vineppo:['method=vineppo','method.continuations.samples=2']}",
            "step_warmup=1",
            "step_rounds=2",
        ),
        *("rounds=2", "faithful=0.5", *(f"grids.cpu.sizes.{size}" for size in sizes)),
    ]


def test_all_parts_and_a_second_call(base_engine: VllmEngine, tmp_path: Path) -> None:
    code, output = run("bench_importance", *options(tmp_path, base_engine.url))
    assert code == 0, output
    numbers = json.loads(output.splitlines()[-1])
    assert set(numbers) == set(NUMBERS | OF_METHODS)
    assert numbers["rlsd_step_ratio"] > 0  # of two rounds: a busy machine can put it below 1
    assert numbers["rlsd_peak_extra_memory_ratio"] > 0
    assert numbers["vineppo_continuation_tokens"] > 1000
    assert {key for key, value in numbers.items() if value is None} == {
        "exact_over_plain_256",
        "exact_token_over_plain_256",
        "oar_gn_step_ratio",
        "window_growth_256_1024",
    }
    assert 0.5 < numbers["oar_p_window_spearman"] < 1
    assert 0.5 < numbers["best_one_backward_spearman"] < 1
    assert numbers["oar_p_exact_step_ratio"] > 0
    assert sorted(path.name for path in tmp_path.glob("*.*")) == [
        *("bench_importance.csv", "bench_importance.md", "bench_importance.png", "provenance.json"),
    ]

    table = pd.read_csv(tmp_path / "bench_importance.csv")
    assert set(table["part"]) == {"synthetic", "embedded", "steps", "methods"}
    exact = table[(table["part"] == "embedded") & (table["method"] == "oar_p")].set_index("metric")["value"]
    assert exact["spearman"] == pytest.approx(1)
    # The cheapest faithful variant took the steps too, whatever step_methods says.
    chosen = json.loads((tmp_path / "provenance.json").read_text())["chosen"]
    assert chosen in set(table.loc[table["part"] == "steps", "method"])

    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "cases").iterdir()}
    code, output = run("bench_importance", *options(tmp_path, "http://127.0.0.1:9"))  # nothing is left to ask an engine
    assert code == 0, output
    assert json.loads(output.splitlines()[-1]) == numbers
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "cases").iterdir()} == before
