"""From what Hydra composed to validated dataclasses and to the objects it names.

Hydra and OmegaConf are imported where they are used: a learner whose configuration was made in Python needs neither.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from oar.errors import ConfigError

if TYPE_CHECKING:
    from omegaconf import DictConfig, ListConfig

Settings = TypeVar("Settings")


def build(key: str, target: Any) -> Any:
    """The object that a Hydra target under `key` describes, or `target` itself where it is such an object already.

    Raises ConfigError where the target's keys do not fit.
    """
    if target is not None and not isinstance(target, Mapping):
        return target
    from hydra.errors import HydraException
    from hydra.utils import instantiate

    try:
        return instantiate(target)
    except HydraException as error:
        reason = str(error.__cause__ or error).splitlines()[0].rstrip(".")
        raise ConfigError(f"{key} cannot be built from {target}: {reason}.") from error


def validated(config: "DictConfig | ListConfig", schema: type[Settings]) -> Settings:
    """The composed configuration as dataclasses. Raises ConfigError in one sentence for whatever is wrong with it."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        settings = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(schema), config))
    except OmegaConfBaseException as error:
        reason = str(error).splitlines()[0]
        key = f" ({error.full_key})" if getattr(error, "full_key", None) else ""
        raise ConfigError(f"The configuration does not fit: {reason}{key}.") from error
    assert isinstance(settings, schema)
    return settings
