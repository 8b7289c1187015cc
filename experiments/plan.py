"""What a run will need and cost, without running it: `python -m experiments.plan profile=paper method=oar_g`."""

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from oar.command_line.entry import entry
from oar.common.errors import ConfigError, DataError
from oar.config import ModelConfig, TrainConfig, build, validated
from oar.config.composed import composed_run
from oar.plan import Architecture, Assumptions, plan_run
from oar.plan.text import plan_text
from oar.plan.work import is_known
from oar.tasks.words.teaching import build_model
from oar.tasks.words.tokenizer import build_tokenizer


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
    own = list(PlanConfig.__dataclass_fields__)
    run = OmegaConf.masked_copy(config, [str(key) for key in config if key not in own])
    no_folder = run.model.path is None and run.model.teach is None
    if no_folder:  # which a run would need
        run.model.path = "no weights are read"
    settings, cfg = validated(OmegaConf.masked_copy(config, own), PlanConfig), validated(run, TrainConfig)
    model, source = sizes_of(cfg.model, settings.architectures if no_folder else None)
    methods = {name: composed_run([f"method={name}"]).method for name in settings.methods} | {
        cfg.method.name: cfg.method
    }
    signals = {name: build("method.estimator", one.estimator, cfg.allow_targets) for name, one in methods.items()}
    for name, estimator in signals.items():
        if not is_known(estimator):
            print(
                f"{name} does not say what it computes (SaysItsWork in oar/plan/work.py): as nothing.", file=sys.stderr
            )
    plan = plan_run(cfg, model, settings.assume, signals, settings.problems, methods)
    if settings.json:
        about = {"profile": cfg.profile, "model": {"name": cfg.model.name, "sizes_from": source, **asdict(model)}}
        print(json.dumps(about | asdict(plan) | {"assumptions": asdict(settings.assume)}))
    else:
        print(plan_text(plan, cfg, source, settings.assume), end="")


def sizes_of(cfg: ModelConfig, known: dict[str, Any] | None) -> tuple[Architecture, str]:
    """The sizes of the model in a folder, or of the one that will be taught, and where they come from.

    known: where there is neither, the sizes by model.name. Raises ConfigError or DataError where there are none.
    """
    if known is not None:
        if cfg.name not in known:
            raise ConfigError(
                "A plan needs the model's sizes: give model.path, or a model that conf/plan.yaml knows "
                f"({', '.join(known)}), not {cfg.name}."
            )
        return Architecture(**known[cfg.name]), "conf/plan.yaml"
    if cfg.path is None:
        taught = build_model(build("model.teach", cfg.teach), build_tokenizer())
        return Architecture.from_config(taught.config.to_dict(), "model.teach"), "model.teach"
    file = Path(cfg.path) / "config.json"
    try:
        return Architecture.from_config(json.loads(file.read_text()), str(file)), str(file)
    except OSError as error:
        raise ConfigError(f"model.path must be a folder with a config.json, but is {cfg.path}: change it.") from error
    except ValueError as error:
        raise DataError(f"{file} must hold JSON, but does not: {error}.") from error


if __name__ == "__main__":
    main()
