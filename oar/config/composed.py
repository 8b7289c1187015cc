"""conf/train as programs of many runs and measurements use it."""

from collections.abc import Sequence

from hydra import compose
from hydra.errors import HydraException

from oar.command_line.overrides import mistake
from oar.common.errors import ConfigError
from oar.config.build import validated
from oar.config.runs import TrainConfig


def composed_run(overrides: Sequence[str]) -> TrainConfig:
    """What conf/train makes of these overrides, within a program of `oar.command_line.entry`. Raises ConfigError where
    they do not fit."""
    try:
        return validated(compose("train", list(overrides)), TrainConfig)
    except HydraException as error:
        said = mistake("train", overrides, error)
        raise ConfigError(f"conf/train cannot be composed with {' '.join(overrides)}: {said}") from error
