"""conf/plan as programs read it: the run, what is assumed of it, the sizes of its model, and credit signals."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from oar.common.errors import ConfigError, DataError
from oar.config import MethodConfig, ModelConfig, TrainConfig, build, validated
from oar.config.composed import composed_run
from oar.launch.start_model import refuse_missing_model
from oar.method.importance import CreditSignal
from oar.plan import Architecture, Assumptions
from oar.tasks.embedded.teaching import build_model
from oar.tasks.warm_start import WarmStart


@dataclass
class PlanConfig:
    """What conf/plan.yaml has beside a run's own keys; they are explained there."""

    json: bool
    methods: list[str]
    architectures: dict[str, Any]
    problems: dict[str, int]
    assume: Assumptions


@dataclass(frozen=True, slots=True)
class Planned:
    """What is planned. `source`: where the model's sizes come from; `scorer`: sizes of probe=reward_model's, which is read."""

    settings: PlanConfig
    run: TrainConfig
    model: Architecture
    source: str
    scorer: Architecture | None


def planned(config: DictConfig) -> Planned:
    """Raises ConfigError or DataError where a key does not fit, or the model's sizes are not known."""
    own = list(PlanConfig.__dataclass_fields__)
    of_run = OmegaConf.masked_copy(config, [str(key) for key in config if key not in own])
    no_folder = of_run.model.path is None and of_run.model.teach is None
    if no_folder:  # which a run would need
        of_run.model.path = "no weights are read"
    settings, run = validated(OmegaConf.masked_copy(config, own), PlanConfig), validated(of_run, TrainConfig)
    scorer = None if run.probe.path is None else sizes_in(run.probe.path, "probe.path")[0]
    sizes = (
        sizes_by_name(run.model.name, settings.architectures)
        if no_folder
        else sizes_of(run.model, settings.architectures)
    )
    return Planned(settings, run, *sizes, scorer)


def method_settings(methods: Sequence[str], run: TrainConfig) -> dict[str, MethodConfig]:
    """Of choices of conf/method, and of the run as it is configured."""
    return {name: composed_run([f"method={name}"]).method for name in methods} | {run.method.name: run.method}


def credit_signals(methods: Mapping[str, MethodConfig], run: TrainConfig) -> dict[str, CreditSignal]:
    """The signals that they name."""
    return {name: build("method.estimator", one.estimator, run.allow_targets) for name, one in methods.items()}


def sizes_by_name(name: str, known: Mapping[str, Any]) -> tuple[Architecture, str]:
    """The sizes that conf/plan.yaml has of a model. Raises ConfigError where it has none."""
    if name not in known:
        raise ConfigError(
            f"A plan needs the model's sizes: give model.path, or a model that conf/plan.yaml knows ({', '.join(known)}), "
            f"not {name}."
        )
    return Architecture(**known[name]), "conf/plan.yaml"


def sizes_of(cfg: ModelConfig, known: Mapping[str, Any]) -> tuple[Architecture, str]:
    """The sizes of the model in a folder, or of the one that will be taught, and where they come from.

    known: by the name of a folder that a warm start begins with, where it is not there yet. Raises ConfigError or DataError where
    there are none.
    """
    if cfg.path is not None:
        refuse_missing_model(cfg)
        return sizes_in(cfg.path, "model.path")
    teaching = build("model.teach", cfg.teach)
    if isinstance(teaching, WarmStart):
        start = Path(teaching.start)
        return sizes_in(teaching.start, "model.teach.start") if start.exists() else sizes_by_name(start.name, known)
    taught = build_model(teaching, teaching.lesson().tokenizer())
    return Architecture.from_config(taught.config.to_dict(), "model.teach"), "model.teach"


def sizes_in(path: str, key: str) -> tuple[Architecture, str]:
    """The sizes of the model in a folder, which stands under `key`, and the file they come from."""
    file = Path(path) / "config.json"
    try:
        return Architecture.from_config(json.loads(file.read_text()), str(file)), str(file)
    except OSError as error:
        raise ConfigError(f"{key} must be a folder with a config.json, but is {path}: change it.") from error
    except ValueError as error:
        raise DataError(f"{file} must hold JSON, but does not: {error}.") from error
