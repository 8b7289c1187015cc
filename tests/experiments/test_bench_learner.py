"""The comparison with TRL: what it refuses, that both sides get the same, and that every number of the page is measured."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from experiments.bench_learner.__main__ import BenchLearner
from experiments.bench_learner.page import Where, case_rows, summary, tidy, write_bench_learner
from experiments.bench_learner.sides import Steps, loss_batch, measure_oar
from experiments.shared.made_up import WARM_UP_LENGTH
from tests.experiments.measurements import prepared

SMALL = ("sizes.qwen_slice.lengths={256:0,2048:0}", "sizes.embedded.lengths={256:4,2048:0}")
HEADLINE = Where("embedded", 256, "equal")


def bench() -> BenchLearner:
    headline = [f"headline.{key}={value}" for key, value in HEADLINE._asdict().items()]
    return prepared("bench_learner", *SMALL, *headline)


def test_batches_have_the_lengths_they_say() -> None:
    found = bench()
    equal, spread = (found.steps(HEADLINE._replace(batch=batch), 4) for batch in ("equal", "spread"))
    assert {len(ids) for ids in equal.completions} == {256}
    assert {len(ids) for ids in equal.prompts} == {64}
    lengths = [len(ids) for ids in spread.completions]
    assert lengths[0] == max(lengths) == 256
    assert min(lengths) >= 32
    assert len(set(lengths)) > 1
    assert [len(values) for values in spread.old_logprobs] == lengths
    assert spread.prompts[0] == spread.prompts[1] != spread.prompts[2], "a group has one prompt"
    assert found.steps(HEADLINE, 4) == equal


def small() -> Steps:
    steps = bench().steps(HEADLINE._replace(batch="spread"), 4)
    return replace(
        steps,
        completions=[ids[: len(ids) // 4] for ids in steps.completions],
        old_logprobs=[values[: len(values) // 4] for values in steps.old_logprobs],
        steps=2,
    )


def test_our_side_counts_its_tokens_and_leaves_the_short_step_out() -> None:
    steps = small()
    found, recomputed = (measure_oar(steps, recompute, None) for recompute in (False, True))
    assert [len(found[name]) for name in ("seconds", "losses", "gradient_norms", "tokens")] == [2] * 4
    # One completion in a micro-batch: nothing is padded.
    assert found["tokens"] == [sum(map(len, steps.prompts + steps.completions))] * 2
    assert found["losses"][0] != found["losses"][1] != 0
    assert recomputed["losses"] == pytest.approx(found["losses"], abs=1e-6)
    data = loss_batch(steps.short())
    assert int(data.batch.completion_lengths.max()) == WARM_UP_LENGTH


def test_a_whole_group_is_one_forward_and_backward() -> None:
    steps = bench().steps(Where("embedded", 256, "grouped_256_256"), 8)
    assert {len(ids) for ids in steps.completions} == {len(ids) for ids in steps.prompts} == {256}
    assert all(prompt == steps.prompts[0] for prompt in steps.prompts)
    steps = replace(steps.short(), steps=1)
    assert measure_oar(steps, False, None)["tokens"] == [255 + 8 * (WARM_UP_LENGTH + 1)]
    assert loss_batch(steps).advantages.abs().min() > 0.9  # half of the one group is right


# From rounds to numbers, by hand.


def measured(seconds: list[float], losses: list[float], tokens: int, peak: int | None = None) -> dict[str, object]:
    norms = [10 * loss for loss in losses]
    return {"seconds": seconds, "losses": losses, "gradient_norms": norms, "tokens": [tokens] * 2, "peak": peak}


ROUNDS = [
    {"oar": measured([1.0, 2.0], [0.5, 0.25], 100), "trl": measured([4.0, 4.0], [0.5, 0.25], 150)},
    {"oar": measured([3.0, 9.0], [0.5, 0.25], 100), "trl": measured([8.0, 4.0], [0.5, 0.25], 150)},
]
MEMORY = {"oar": measured([9.0], [0.5002], 100, 3 * 2**20), "trl": measured([9.0], [0.5], 150, 12 * 2**20)}


def test_numbers_by_hand(tmp_path: Path) -> None:
    table = tidy(case_rows(HEADLINE, 100, ROUNDS, MEMORY))
    value = table.set_index(["side", "metric"])["value"]
    assert value["oar", "seconds"] == 2.5
    assert value["oar", "seconds_q1"] == 1.75
    assert value["oar", "time_ratio"] == 2.5 / 4
    assert value["oar", "peak_mib"] == 3
    assert value["oar", "memory_ratio"] == 0.25
    assert value["oar", "padding"] == 0
    assert value["trl", "padding"] == 0.5
    assert value["oar", "loss_abs_diff"] == pytest.approx(2e-4)
    assert value["oar", "norm_rel_diff"] == pytest.approx(4e-4)
    assert value["trl", "loss_abs_diff"] == 0

    worse = table.assign(length=1024).replace({"value": {value["oar", "loss_abs_diff"]: 0.125, 0.625: 0.5}})
    both = pd.concat([table, worse])
    numbers = summary(both, HEADLINE)
    assert numbers == {"time_ratio_vs_trl": 0.625, "memory_ratio_vs_trl": 0.25, "loss_abs_diff": 0.125}
    elsewhere = pd.concat(
        [table, table.assign(batch="grouped_x"), table.assign(size="other"), table.assign(batch="spread")]
    )
    assert summary(elsewhere, HEADLINE) == numbers | {
        "loss_abs_diff": pytest.approx(2e-4),
        **dict.fromkeys(("grouped_x_time", "other_256_time"), 0.625),
        **dict.fromkeys(("grouped_x_memory", "other_256_memory"), 0.25),
    }

    run = {"trl": "1.2", "threads": 1, "dtype": "float32", "rounds": 2, "steps": 2}
    run |= {"old_noise": 0.1, "sizes": "S", "batches": "B", "grouped": ""}
    machine = {"versions": {"torch": "2"}, "gpu": None, "cpu": "a CPU", "cores": 2, "command": "python -m this"}
    found = write_bench_learner(both, tmp_path, headline=HEADLINE, run=run, provenance=machine)
    assert found == numbers
    page = (tmp_path / "bench_learner.md").read_text()
    assert "| <= 0.8 | 0.62 | yes |" in page
    assert "missed by 1.2e-01" in page
    assert "| `oar` | 2.5 [1.75, 4.5] | 0.62 | 3 | 0.25 | 0% |" in page
    assert (tmp_path / "bench_learner.png").read_bytes().startswith(b"\x89PNG")
