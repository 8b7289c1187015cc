"""conf/train and conf/plan as programs of many runs and measurements use them."""

from collections.abc import Sequence

from hydra import compose
from hydra.errors import HydraException
from omegaconf import DictConfig

from oar.command_line.overrides import mistake
from oar.common.errors import ConfigError
from oar.config.build import validated
from oar.config.runs import TrainConfig


def composed(name: str, overrides: Sequence[str]) -> DictConfig:
    """What conf/NAME makes of these overrides, within a program of `oar.command_line.entry`. Raises ConfigError where they do
    not fit."""
    try:
        return compose(name, list(overrides))
    except HydraException as error:
        said = mistake(name, overrides, error)
        raise ConfigError(f"conf/{name} cannot be composed with {' '.join(overrides)}: {said}") from error


def composed_run(overrides: Sequence[str]) -> TrainConfig:
    """The same of conf/train, as settings of a run."""
    return validated(composed("train", overrides), TrainConfig)
