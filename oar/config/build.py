"""From what Hydra composed to validated dataclasses and to the objects it names."""

from typing import Any, TypeVar

from hydra.errors import HydraException
from hydra.utils import instantiate
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from oar.errors import ConfigError

Settings = TypeVar("Settings")


def build(key: str, target: Any) -> Any:
    """The object that a Hydra target under `key` describes. Raises ConfigError where its keys do not fit."""
    try:
        return instantiate(target)
    except HydraException as error:
        reason = str(error.__cause__ or error).splitlines()[0].rstrip(".")
        raise ConfigError(f"{key} cannot be built from {target}: {reason}.") from error


def validated(config: DictConfig | ListConfig, schema: type[Settings]) -> Settings:
    """The composed configuration as dataclasses. Raises ConfigError in one sentence for whatever is wrong with it."""
    try:
        settings = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(schema), config))
    except OmegaConfBaseException as error:
        reason = str(error).splitlines()[0]
        key = f" ({error.full_key})" if getattr(error, "full_key", None) else ""
        raise ConfigError(f"The configuration does not fit: {reason}{key}.") from error
    assert isinstance(settings, schema)
    return settings
