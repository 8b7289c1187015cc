"""Evaluate a model: greedy pass@1 and avg@k with confidence intervals, `python -m experiments.evaluate model.path=...`.

With `rollout.url=` the model that a running server holds is evaluated, and `model.path` only names its tokenizer.
"""

from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from oar.cli import explain_errors
from oar.config import EvaluateConfig, validated
from oar.errors import ConfigError
from oar.evaluation import concatenate, evaluate
from oar.models import load_tokenizer, model_folder
from oar.provenance import ROOT, collect_provenance, git_state
from oar.rollout.client import EngineClient
from oar.rollout.engine import VllmEngine
from oar.rollout.types import Sampling
from oar.seeding import derive_seed
from oar.supervisor import engine_options
from oar.tasks.sources import load_benchmarks
from oar.tasks.task import Task


@hydra.main(version_base=None, config_path="../conf", config_name="evaluate")
def main(config: DictConfig) -> None:
    """Start an engine on the model (or use a running one), evaluate, write the files, print the table."""
    with explain_errors(), ExitStack() as running:
        cfg = validated(config, EvaluateConfig)
        started, git = datetime.now(UTC), git_state(ROOT)
        folder = Path(HydraConfig.get().runtime.output_dir)
        if (folder / "evaluation.json").exists():
            raise ConfigError(f"{folder} already holds an evaluation: choose another output_dir.")
        model = model_folder(cfg.model, print)
        benchmarks = load_benchmarks(cfg.benchmark, "final", cfg.evaluation.final_problems)
        url = (
            cfg.rollout.url
            or running.enter_context(VllmEngine(engine_options(cfg.rollout, cfg.model, model, folder))).url
        )
        client = EngineClient(url, cfg.rollout.request_timeout_s)
        settings = cfg.evaluation
        result = concatenate(
            [
                evaluate(
                    partial(client.generate, expected_version=client.weight_version()),
                    {name: found.problems for name, found in benchmarks.items()},
                    task=Task(load_tokenizer(model), cfg.model.marker),
                    sampling=Sampling(k, temperature, cfg.rollout.max_new_tokens),
                    seed=derive_seed(cfg.seed, "evaluation"),
                )
                for k, temperature in ((settings.k, settings.temperature), (1, 0.0))
            ]
        )
        provenance = collect_provenance(asdict(cfg), started=started, git=git)
        data = {name: found.origin for name, found in benchmarks.items()}
        result.save(folder, provenance | {"seed": cfg.seed, "data": data})
        print(result.table())
        print(f"written to {folder}")


if __name__ == "__main__":
    main()
