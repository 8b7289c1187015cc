"""conf/train as programs of many runs and measurements use it."""

from collections.abc import Sequence

from hydra import compose
from hydra.errors import HydraException

from oar.config.build import validated
from oar.config.runs import TrainConfig
from oar.errors import ConfigError
from oar.overrides import mistake


def composed_run(overrides: Sequence[str]) -> TrainConfig:
    """What conf/train makes of these overrides, within a program of `oar.entry`. Raises ConfigError where they do not fit."""
    try:
        return validated(compose("train", list(overrides)), TrainConfig)
    except HydraException as error:
        said = mistake("train", overrides, error)
        raise ConfigError(f"conf/train cannot be composed with {' '.join(overrides)}: {said}") from error
