"""The comparison with TRL, small, with the real trainer: the same losses, the last line, a second call that measures nothing."""

import json
from pathlib import Path

import pandas as pd
import pytest

from tests.experiments.test_bench_learner import SMALL
from tests.programs import run

pytestmark = [pytest.mark.slow, pytest.mark.system]


def test_both_sides_compute_the_same_and_a_second_call(tmp_path: Path) -> None:
    options = [
        f"output_dir={tmp_path}",
        *SMALL,
        "headline.size=embedded",
        "headline.length=256",
        "headline.batch=spread",
    ]
    options += ["~batches.equal", "~sizes.qwen_slice", "rounds=1", "steps=1", "sides=[oar,trl]"]
    options += [f"grouped.{name}.completions=0" for name in ("grouped_1024_256", "grouped_64_512")]
    options += ["grouped.grouped_256_256={prompt_tokens:64,completion_tokens:32,completions:4}"]
    code, output = run("bench_learner", *options)
    assert code == 0, output
    numbers = json.loads(output.splitlines()[-1])
    ratios = ("time_ratio_vs_trl", "memory_ratio_vs_trl", "grouped_256_256_time", "grouped_256_256_memory")
    assert set(numbers) == {*ratios, "loss_abs_diff"}
    assert numbers["loss_abs_diff"] < 1e-5
    assert 0 < numbers["time_ratio_vs_trl"] < 10
    assert sorted(path.name for path in tmp_path.glob("*.*")) == [
        *("bench_learner.csv", "bench_learner.md", "bench_learner.png", "provenance.json"),
    ]
    table = pd.read_csv(tmp_path / "bench_learner.csv")
    grouped = table["batch"] == "grouped_256_256"
    value = table[~grouped].set_index(["side", "metric"])["value"]
    shared = table[grouped].set_index(["side", "metric"])["value"]
    assert shared["oar", "padding"] == pytest.approx((63 + 4 * 33) / (4 * 96) - 1)
    assert shared["trl", "padding"] == 0
    assert shared["oar", "norm_rel_diff"] < 1e-4
    assert value["oar", "norm_rel_diff"] < 1e-4, "not only the loss: the gradient too"
    assert value["oar", "padding"] == 0
    assert value["trl", "padding"] > 0.1, "it pads to the longest completion of the batch"

    code, output = run("bench_learner", *options)
    assert code == 0, output
    assert json.loads(output.splitlines()[-1]) == numbers
