"""Folders of finished runs, made by hand: what `experiments.train` leaves behind, as far as a report reads it."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from omegaconf import OmegaConf

Scores = Mapping[str, Sequence[float]]  # by benchmark the share of right samples of each problem, 0 to 1
VERSIONS = {"torch": "2.0", "oar": None}


def make_run(
    folder: Path,
    method: str,
    seed: int,
    scores: Scores,
    *,
    greedy: Scores | None = None,
    k: int = 4,
    entropy: Sequence[float] = (1.0, 1.0, 1.0),
    reward: Sequence[float] = (0.5, 0.5, 0.5),
    seconds: Sequence[float] = (2.0, 2.0, 2.0),
    keep_samples: bool = True,
    **settings: object,
) -> Path:
    """`scores` are avg@k; `greedy` pass@1, the first right sample by default. `settings` are those of config.yaml."""
    folder = folder / f"{method}-seed{seed}"
    folder.mkdir(parents=True)
    greedy = {name: [float(share > 0) for share in of] for name, of in scores.items()} if greedy is None else greedy
    passes = [("avg@k", k, 1.0, scores), ("pass@1", 1, 0.0, greedy)]
    samples = pd.DataFrame(
        {
            "benchmark": name,
            "problem_id": f"p{problem:05}",
            "sample": sample,
            "metric": metric,
            "k": n,
            "temperature": temperature,
            "gold": str(problem),
            "correct": sample < round(share * n),
        }
        for metric, n, temperature, by_benchmark in passes
        for name, of in by_benchmark.items()
        for problem, share in enumerate(of)
        for sample in range(n)
    )
    if keep_samples:
        samples.to_parquet(folder / "samples.parquet", index=False)
    rows = [
        {"benchmark": name, "metric": metric, "k": n, "temperature": t, "value": 100 * np.mean(of), "n": len(of)}
        for metric, n, t, by_benchmark in passes
        for name, of in by_benchmark.items()
    ]
    for metric, n, t, by_benchmark in passes:
        mean = 100 * np.mean([np.mean(of) for of in by_benchmark.values()])
        total = sum(map(len, by_benchmark.values()))
        rows.append({"benchmark": "mean", "metric": metric, "k": n, "temperature": t, "value": mean, "n": total})
    pd.DataFrame(rows).to_csv(folder / "evaluation.csv", index=False)
    describe_run(folder, method, seed, data={name: {"file": "a.jsonl", "sha256": "5a"} for name in scores}, **settings)
    logged = zip(entropy, reward, strict=True)
    write_lines(folder / "metrics.jsonl", [{"train/entropy": e, "train/reward_mean": r} for e, r in logged])
    write_lines(folder / "timings.jsonl", [{"total": one} for one in seconds])
    return folder


def describe_run(folder: Path, method: str, seed: int, *, data: object, **settings: object) -> None:
    """config.yaml and evaluation.json alone. `settings`: profile, model, gating, tau, beta, measure, template, gpu."""
    chosen = {"profile": "embedded", "model": "embedded", "gating": "bilevel", "tau": 0.4, "beta": 2.0, "measure": "m1"}
    chosen |= {"template": {"name": "qwen_math", "digest": "d16e57"}, "gpu": None} | settings  # type: ignore[dict-item]
    config = {
        "seed": seed,
        "profile": chosen["profile"],
        "method": {"name": method},
        "model": {"name": chosen["model"]},
        "gating": {"name": chosen["gating"], "tau": chosen["tau"], "beta": chosen["beta"]},
        "learner": {"steps": 3},
    }
    (folder / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(config)))
    provenance = {
        "git_commit": "c0ffee",
        "git_dirty": False,
        "versions": VERSIONS,
        "platform": "toy",
        "cpu": "toy CPU",
        "cores": 2,
        "gpu": chosen["gpu"],
        "started": f"2026-11-0{seed}T00:00:00+00:00",
        "finished": f"2026-11-0{seed}T01:00:00+00:00",
        "seconds": 100.0,
        "data": data,
        "seed": seed,
        "step": 3,
        "identity": f"{method}{seed}",
        "measure": chosen["measure"],
        "template": chosen["template"],
    }
    (folder / "evaluation.json").write_text(json.dumps({"results": [], "provenance": provenance}))


def write_lines(path: Path, lines: Sequence[Mapping[str, float]]) -> None:
    """JSON lines of the steps from 1 on."""
    path.write_text("".join(json.dumps({"step": step, **line}) + "\n" for step, line in enumerate(lines, start=1)))


def numbered_run(folder: Path, number: int, method: str, seed: int, scores: Scores, **settings: Any) -> Path:
    """A run in the numbered folder that a multirun gives it."""
    return make_run(folder / ".aside", method, seed, scores, **settings).rename(folder / str(number))


def toy_study(**switches: bool) -> dict[str, Any]:
    """What the page of a study says and no table holds; `credit` and `mistakes` are part of it where they are switched on."""
    return {
        **{
            "name": "toy",
            "title": "Toy",
            "question": "Why?",
            "paper": "Nothing.",
            "ran": "Briefly.",
            "repeat": "python -m x",
        },
        **{
            "reference": "grpo",
            "arms": {"grpo": ["method=grpo"], "oar_g": ["method=oar_g"]},
            "conditions": {"default": []},
            "pairs": [],
            "logged": {},
        },
        **{
            "overrides": [],
            "seeds": 3,
            "runs": 6,
            "steps": [4],
            "problems": "all",
            "k": 4,
            "credit": False,
            "mistakes": False,
            "placement": False,
            "beside": [],
            "rates": [],
        },
        **switches,
    }
