"""What a run will need and cost, without running it: `python -m experiments.plan profile=paper method=oar_g`."""

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from oar.command_line.entry import entry
from oar.common.errors import ConfigError, DataError
from oar.config import ModelConfig, TrainConfig, build, validated
from oar.config.composed import composed_run
from oar.method.importance import ImportanceEstimator
from oar.plan import Architecture, Assumptions, plan_run
from oar.plan.importance import is_known
from oar.plan.text import plan_text
from oar.tasks.words.teaching import TeachConfig
from oar.tasks.words.tokenizer import build_tokenizer

WIDTH = 120  # columns, where the output is no terminal


@dataclass
class PlanConfig:
    """What conf/plan.yaml has beside a run's own keys; they are explained there."""

    json: bool
    methods: list[str]
    architectures: dict[str, Any]
    problems: dict[str, int]
    assume: Assumptions


@entry
def main(config: DictConfig) -> None:
    """Compose, work it out, print."""
    settings, cfg, no_folder = settings_of(config)
    model, source = known_sizes(cfg.model, settings.architectures) if no_folder else own_sizes(cfg.model)
    methods = estimators(cfg, settings.methods)
    for name in (name for name, estimator in methods.items() if not is_known(estimator)):
        print(
            f"{name} does not say what it computes (SaysItsWork in oar/plan/importance.py): as nothing.",
            file=sys.stderr,
        )
    plan = plan_run(cfg, model, settings.assume, methods, settings.problems)
    if settings.json:
        about = {"profile": cfg.profile, "model": {"name": cfg.model.name, "sizes_from": source, **asdict(model)}}
        print(json.dumps(about | asdict(plan) | {"assumptions": asdict(settings.assume)}))
        return
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = WIDTH
    for part in plan_text(plan, cfg, source, settings.assume):
        console.print(part)


def settings_of(config: DictConfig) -> tuple[PlanConfig, TrainConfig, bool]:
    """The plan's own settings, the run's, and whether there is no model folder: a run would need it, a plan knows sizes."""
    own = list(PlanConfig.__dataclass_fields__)
    run = OmegaConf.masked_copy(config, [str(key) for key in config if key not in own])
    no_folder = run.model.path is None and run.model.teach is None
    if no_folder:
        run.model.path = "no weights are read"
    return validated(OmegaConf.masked_copy(config, own), PlanConfig), validated(run, TrainConfig), no_folder


def known_sizes(cfg: ModelConfig, known: dict[str, Any]) -> tuple[Architecture, str]:
    """The sizes that conf/plan.yaml has for this model's name. Raises ConfigError where it has none."""
    if cfg.name not in known:
        raise ConfigError(
            f"A plan needs the model's sizes: give model.path, or a model that conf/plan.yaml knows ({', '.join(known)}), "
            f"not {cfg.name}."
        )
    return Architecture(**known[cfg.name]), "conf/plan.yaml"


def own_sizes(cfg: ModelConfig) -> tuple[Architecture, str]:
    """The sizes of the model in a folder, or of the one that will be taught. Raises ConfigError or DataError for a bad folder."""
    if cfg.path is None:
        teach: TeachConfig = build("model.teach", cfg.teach)
        sizes = Architecture(
            layers=teach.num_layers,
            hidden=teach.hidden_size,
            heads=teach.num_heads,
            kv_heads=teach.num_key_value_heads,
            intermediate=teach.intermediate_size,
            vocabulary=len(build_tokenizer()),
            tied=teach.tie_embeddings,
            context=teach.max_position_embeddings,
        )
        return sizes, "model.teach"
    file = Path(cfg.path) / "config.json"
    try:
        return Architecture.from_config(json.loads(file.read_text()), str(file)), str(file)
    except OSError as error:
        raise ConfigError(
            f"model.path must be a folder with a config.json, but {cfg.path} is not: change model.path."
        ) from error
    except ValueError as error:
        raise DataError(f"{file} must hold JSON, but does not: {error}.") from error


def estimators(cfg: TrainConfig, methods: list[str]) -> dict[str, ImportanceEstimator]:
    """The estimators of `methods` as conf/method has them, and the run's own as it is configured."""
    targets = {name: composed_run([f"method={name}"]).method.estimator for name in methods}
    targets[cfg.method.name] = cfg.method.estimator
    return {name: build("method.estimator", target, cfg.allow_targets) for name, target in targets.items()}


if __name__ == "__main__":
    main()
