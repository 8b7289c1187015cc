"""Runs whose dashboard can be worked out by hand."""

import json
from dataclasses import asdict
from pathlib import Path

from tests.experiments.inspector_pages import ATTACK, sample
from tests.experiments.made_runs import make_run


def small_runs(folder: Path) -> Path:
    """GRPO with two seeds and OAR-G with two values of tau, one of which is not finished and has no timings."""
    halves = {"words1": [1.0, 0.5], "words2": [0.0, 0.5]}  # avg@4 75 and 25
    make_run(folder, "grpo", 1, halves, reward=[0.1, 0.2, 0.6], entropy=[1.0, 1.0, 1.0], seconds=[1.0, 2.0, 3.0])
    make_run(
        folder,
        "grpo",
        2,
        {"words1": [1.0, 1.0], "words2": [0.0, 0.5]},
        reward=[0.3, 0.4],
        entropy=[2.0, 2.0],
        seconds=[3.0, 2.0],
    )
    first = make_run(folder / "sweep", "oar_g", 1, halves, reward=[0.5, 0.5, 0.5], seconds=[4.0, 4.0, 4.0], tau=0.4)
    second = make_run(folder / "sweep" / "more", "oar_g", 1, halves, reward=[0.9, 0.8, 0.7], tau=0.2)
    for name in ("evaluation.json", "evaluation.csv", "timings.jsonl"):
        (second / name).unlink()
    with (second / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "train/rew')  # being written
    keep_samples(first, 2, [("p1", [0.1, 1.2, 2.4, 0.3], 1.0), ("p2", [1.0, 1.0, 1.0, 1.0], 0.0)])
    keep_samples(folder / "grpo-seed1", 3, [("p9", [1.0, 1.0, 1.0, 1.0], 0.0), ("p1", [1.0, 1.0, 1.0, 1.0], 1.0)])
    (first / "inspector").mkdir()
    (first / "inspector" / "step_000002.html").touch()
    return folder


def keep_samples(run: Path, step: int, kept: list[tuple[str, list[float], float]]) -> None:
    """samples.jsonl: of each problem the weights of four reasoning tokens, and the reward."""
    rows = [
        sample(
            ["Two", "and", "three", ATTACK, "####", "5", ""],
            [4, 5, 6],
            text=f"Two and three {ATTACK} #### 5",
            reward=reward,
            problem=problem,
            prompt=f"How many {problem} ? {ATTACK}",
            token_weights=[*weights, 1.0, 1.0, 1.0],
        )
        for problem, weights, reward in kept
    ]
    lines = [json.dumps({"step": step, **asdict(row)}) + "\n" for row in rows]
    (run / "samples.jsonl").write_text("".join(lines))
