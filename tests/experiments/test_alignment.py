"""How well pushes are aligned with what digits deserve: by a naive sum, on any vocabulary, and over a run's first steps."""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from omegaconf import OmegaConf

from experiments.study.alignment import (
    ALIGNMENT,
    FIRST_STEPS,
    aligned_arms,
    alignment,
    draw_alignment,
    explained,
    step_alignment,
)
from oar.analysis.reports.figures import picture
from oar.learner.samples import Sample
from oar.runs.folder import Run
from oar.runs.tracking import SAMPLES
from oar.tasks.sheets import Sheet

TABLE = {"co": "7", "do": "6", "ca": "3", "qa": "8"}
TOKENS = ["co", "7", "do", "5", "ca", "3", "####", "7"]  # the second entry is wrong
P = [0.9, 0.5, 0.99, 0.2, 1.0, 0.7, 0.9, 0.5]
PUSHED = [0.5, 1.0, -2.0, -1.0, 9.0, 0.25, 3.0, 3.0]  # token advantages


def sample(tokens: list[str], text: str, p: list[float], advantages: list[float], causal: list[int]) -> Sample:
    """A completion whose last two tokens are a marker and an answer."""
    nothing = [0.0] * len(tokens)
    return Sample(
        row=0,
        problem="p",
        benchmark="sheets",
        prompt="",
        completion=text,
        gold="",
        correct=False,
        reward=0.0,
        rewards={},
        advantage=0.0,
        prompt_ids=[],
        completion_ids=[0] * len(tokens),
        tokens=tokens,
        segments=[len(tokens) - 2, len(tokens) - 1, len(tokens)],
        old_logprobs=np.log(p).tolist(),
        entropy=nothing,
        token_importance=nothing,
        token_weights=nothing,
        marks={"causal": causal, "error": []},
        token_advantages=advantages,
    )


SHARE = sample(TOKENS, " ".join(TOKENS), P, PUSHED, causal=[1, 3, 5])


def test_the_cosine_of_a_step_by_hand() -> None:
    """Over both completions at once; the tokens of the answer are not looked at, and a sure key counts nothing."""
    quiet = replace(SHARE, token_advantages=[0.0] * 8)
    pushed = [0.5 * 0.1, 1.0 * 0.5, -2.0 * 0.01, -1.0 * 0.8, 0.0, 0.25 * 0.3]
    deserved = [0.0, 0.5, 0.0, -0.8, 0.0, 0.3]
    dot = sum(one * other for one, other in zip(pushed, deserved, strict=True))
    size = math.sqrt(sum(one**2 for one in pushed)) * math.sqrt(2 * sum(one**2 for one in deserved))
    assert step_alignment([SHARE, quiet], TABLE) == pytest.approx(dot / size)


def test_only_digits_that_the_reward_counts_deserve_a_push() -> None:
    one = replace(SHARE, marks={"causal": [3], "error": []})
    assert step_alignment([replace(one, token_advantages=[0, 0, 0, -1.0, 0, 0, 0, 0])], TABLE) == pytest.approx(1)
    assert step_alignment([replace(one, token_advantages=[0, 1.0, 0, 0, 0, 0, 0, 0])], TABLE) == 0
    assert step_alignment([replace(one, token_advantages=[0, 0, 0, 1.0, 0, 0, 0, 0])], TABLE) == pytest.approx(-1)


def test_a_step_that_pushes_nothing_is_not_aligned_and_one_without_digits_says_nothing() -> None:
    assert step_alignment([replace(SHARE, token_advantages=[0.0] * 8)], TABLE) == 0
    assert math.isnan(step_alignment([replace(SHARE, marks={"causal": [], "error": []})], TABLE))


def test_a_key_of_several_tokens_is_read_from_the_text() -> None:
    """As SmolLM2 has it: blanks are tokens of their own, rare keys are of two."""
    tokens = ["co", " ", "7", "\n", "q", "a", " ", "8", "\n", "####", " 7"]
    right = sample(
        tokens, "co 7\nqa 8\n#### 7", [0.5] * 11, [1.0 if place in (2, 7) else 0.0 for place in range(11)], [2, 7]
    )
    assert step_alignment([right], TABLE) == pytest.approx(1)
    unknown = replace(right, completion="co 7\nq 8\n#### 7")  # there is no such key: its digit is wrong
    assert step_alignment([unknown], TABLE) == pytest.approx(0)
    long = sample(["co", " 78", "\n", "####", " 7"], "co 78\n#### 7", [0.5] * 5, [0.0, 1.0, 0.0, 0.0, 0.0], [1])
    assert step_alignment([long], TABLE) == pytest.approx(
        -1
    )  # a number of two digits is not right, though it begins so


def run_with(folder: Path, samples: dict[int, Sample], sheet: Sheet | None) -> Run:
    """A run on `sheet` that kept a completion at each of these steps."""
    lines = [json.dumps({"step": step, **asdict(one)}) for step, one in samples.items()]
    (folder / SAMPLES).write_text("".join(line + "\n" for line in lines))
    source = {} if sheet is None else {"sheet": {"_target_": "oar.tasks.sheets.generator.Sheet", **asdict(sheet)}}
    return Run(folder, OmegaConf.create({"data": {"source": source}}), {}, "grpo", "one")


def test_only_the_ten_digits_are_digits() -> None:
    """Some vocabularies spread a digit of another script over tokens that are none."""
    tokens = ["co", " ", "\ufffd", "\ufffd", "do", "6", "####", "6"]
    alone = [0.0] * 5 + [1.0, 0.0, 0.0]
    one = sample(tokens, "co \N{ARABIC-INDIC DIGIT THREE} do 6 #### 6", P, alone, causal=[5])
    assert step_alignment([one], TABLE) == pytest.approx(1)


def test_a_run_is_the_mean_of_its_first_steps(tmp_path: Path) -> None:
    sheet = Sheet()
    key, digit = next(iter(sheet.right.items()))
    tokens = [key, digit, "####", digit]
    up = sample(tokens, " ".join(tokens), [0.5] * 4, [0.0, 1.0, 0.0, 0.0], [1])
    down = replace(up, token_advantages=[0.0, -1.0, 0.0, 0.0])
    steps = {10: up, 20: up, FIRST_STEPS: down, FIRST_STEPS + 10: down}
    assert alignment(run_with(tmp_path, steps, sheet)) == pytest.approx(1 / 3)
    assert math.isnan(alignment(run_with(tmp_path, steps, None)))
    run = run_with(tmp_path, steps, sheet)
    (tmp_path / SAMPLES).unlink()
    assert math.isnan(alignment(run))


def test_arms_are_taken_at_their_best_rate_and_ranked(tmp_path: Path) -> None:
    found = {"grpo": (0.1, 300), "oar_p": (0.5, 80), "oar_g": (0.4, 100), "oracle_causal": (0.8, 90)}
    rows = [("one", arm, 3e-4, seed, True, steps, value) for arm, (value, steps) in found.items() for seed in (1, 2, 3)]
    rows += [("one", "oar_p", 1e-4, seed, True, 200, 0.9) for seed in (1, 2, 3)]  # its worse rate
    # The best rate of this one has none: it is left out, not shown at a worse rate.
    rows += [("one", "oar_gn", 1e-4, seed, True, 200, 0.9) for seed in (1, 2, 3)]
    rows += [("one", "oar_gn", 5e-4, seed, True, 20, np.nan) for seed in (1, 2, 3)]
    rows += [("one", "oar_p", 3e-4, 4, True, 10, np.nan), ("share", "grpo", 3e-4, 1, True, 90, 0.2)]
    costs = pd.DataFrame(rows, columns=["condition", "arm", "rate", "seed", "reached", "steps", ALIGNMENT])
    # From another base model, under another seed, two arms were sooner: they are not held against arms of the first.
    other = pd.DataFrame([("one", arm, 3e-4, 5, True, 10, 0.0) for arm in ("grpo", "oar_p")], columns=costs.columns)
    costs = pd.concat([costs.assign(start_weights="first"), other.assign(start_weights="second")], ignore_index=True)
    arms = aligned_arms(costs).set_index(["condition", "arm"])
    assert arms.loc[("one", "oar_p")].tolist() == [0.5, 80, 3]
    assert ("one", "oar_gn") not in arms.index
    older = costs[costs["seed"] < 5].assign(start_weights=np.nan)  # what they began with is not known
    pd.testing.assert_frame_equal(aligned_arms(older), arms.reset_index())
    assert explained(arms.reset_index()) == {"one": (4, pytest.approx(0.8))}  # the oracle and OAR-P change places
    draw_alignment(arms.reset_index(), tmp_path / "alignment.png")
    assert (tmp_path / "alignment.png").stat().st_size > 1000


def test_no_mark_lies_outside_its_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights on other tokens may push the wrong way."""
    seen = []

    @contextmanager
    def watched(path: Path, **how: Any) -> Iterator[Figure]:
        with picture(path, **how) as figure:
            yield figure
            seen.extend((axes.get_xlim(), axes.get_ylim()) for axes in figure.axes)

    monkeypatch.setattr("experiments.study.alignment.picture", watched)
    rows = [
        ("all", "grpo", 0.01, 220, 5),
        ("all", "oar_s_shuffled", -0.6, 150, 5),
        ("all", "oracle_signed", 0.99, 30, 5),
    ]
    draw_alignment(pd.DataFrame(rows, columns=["condition", "arm", ALIGNMENT, "steps", "seeds"]), tmp_path / "all.png")
    (((left, right), (_, top)),) = seen
    assert left < -0.6
    assert right > 0.99
    assert top > 220
