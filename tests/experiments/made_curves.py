"""Made runs to a threshold: their curves, and tables of what they needed."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
from omegaconf import OmegaConf

from oar.runs.folder import Run, read_run
from tests.experiments.made_runs import describe_run, write_lines

KINDS = {"grpo": "method", "oar_p": "method", "oar_p_shuffled": "control", "oracle_causal": "oracle"}


def made(
    folder: Path,
    arm: str,
    seed: int,
    curve: dict[int, float],
    *,
    rate: float = 1e-3,
    longest: int = 40,
    **logged: float,
) -> Run:
    """A run with these points of its curve; a step draws 8 completions of 10 tokens, takes half a second and has `logged`."""
    folder = folder / f"{arm}-{rate}-{seed}"
    folder.mkdir(parents=True)
    describe_run(folder, arm, seed, data={})
    settings = OmegaConf.load(folder / "config.yaml")
    more = {"evaluation": {"stop_at": 0.9}, "learner": {"steps": longest, "lr": rate, "batch_size": 8}}
    (folder / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.merge(settings, more)))
    steps = [{"train/completion_length": 10.0, **logged} for _ in range(max(curve))]
    for step, reward in curve.items():
        if step:
            steps[step - 1]["eval/mean/reward@1"] = reward
    write_lines(folder / "metrics.jsonl", steps)
    first = json.dumps({"step": 0, "eval/mean/reward@1": curve[0]}) + "\n"
    (folder / "metrics.jsonl").write_text(first + (folder / "metrics.jsonl").read_text())
    write_lines(folder / "timings.jsonl", [{"total": 0.5}] * max(curve))
    (folder / "evaluation.csv").touch()
    return read_run(folder, arm=arm, condition="one")


def runs_of(folder: Path) -> list[Run]:
    """GRPO takes 30 steps, the ceiling 10, OAR-P 20 at its better rate; its control gets there once in three times."""
    slow, fast = {0: 0.3, 10: 0.5, 20: 0.8, 30: 0.95}, {0: 0.3, 10: 0.9}
    never = {0: 0.3, 10: 0.4, 20: 0.5, 30: 0.6, 40: 0.7}
    found = []
    for seed in (1, 2, 3):
        found += [made(folder, "grpo", seed, slow), made(folder, "oracle_causal", seed, fast)]
        found += [
            made(folder, "oar_p", seed, {0: 0.3, 10: 0.5, 20: 0.91}),
            made(folder, "oar_p", seed, slow, rate=3e-4),
        ]
        found += [made(folder, "oar_p_shuffled", seed, slow if seed == 1 else never)]
    return found


def costs_of(rows: list[tuple[object, ...]]) -> pd.DataFrame:
    """Costs of runs of which no credit was kept."""
    columns = ["condition", "arm", "rate", "seed", "reached", "steps", "tokens", "seconds"]
    return pd.DataFrame(rows, columns=columns).assign(last=np.nan, causal_auc=np.nan, alignment=np.nan)
