"""From what Hydra composed to validated dataclasses and to the objects it names.

OmegaConf is imported where it is used: a learner whose configuration was made in Python needs none.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from oar.common.errors import ConfigError, OarError, did_you_mean
from oar.config.checks import check_bounds

if TYPE_CHECKING:
    from omegaconf import DictConfig, ListConfig

Settings = TypeVar("Settings")

TARGET = "_target_"
# Where the classes are that any configuration may name. It may come with a folder of somebody else's: what is here must do no
# harm when it is made, whatever its arguments are.
ROOMS = ("oar.method.importance", "oar.tasks.data.sources", "oar.tasks.words.teaching", "experiments.fidelity.signals")


def build(key: str, target: Any, allowed: Sequence[str] = ()) -> Any:
    """The object that the mapping under `key` describes: `_target_` names its class, all else are its arguments.

    An argument may be such a mapping again, at any depth. A class must be defined in one of ROOMS or in a module or package of
    `allowed`, which the user typed as `allow_targets`. Raises ConfigError where one is not, before anything is imported from
    elsewhere or made, and where arguments do not fit.
    """
    if not isinstance(target, Mapping) or TARGET not in target:
        raise ConfigError(f"{key} must name a class by {TARGET}, but is {target!r}.")
    classes = {name: _class_named(key, name, (*ROOMS, *allowed)) for name in _names(target)}
    try:
        return _made(target, classes)
    except (TypeError, ValueError, OarError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise ConfigError(f"{key} cannot be built from {target}: {reason}.") from error


def validated(config: "DictConfig | ListConfig", schema: type[Settings]) -> Settings:
    """The composed configuration as dataclasses. Raises ConfigError in one sentence for whatever is wrong with it."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        merged = OmegaConf.merge(OmegaConf.structured(schema), config)
        check_bounds(schema, merged)  # first: a schema's own checks may count on them
        settings = OmegaConf.to_object(merged)
    except OmegaConfBaseException as error:
        reason = str(error).splitlines()[0]
        key = f" ({error.full_key})" if getattr(error, "full_key", None) else ""
        # Of a key that is not there, the dataclass that should have it says what it has.
        names = [field.name for field in fields(error.object_type)] if is_dataclass(error.object_type) else []
        near = did_you_mean(str(error.key), names) if isinstance(error, KeyError | AttributeError) else ""
        raise ConfigError(f"The configuration does not fit: {reason}{key}{near or '.'}") from error
    assert isinstance(settings, schema)
    return settings


def _names(node: Any) -> Iterator[str]:
    """Of every class that a node names, at any depth."""
    if isinstance(node, Mapping):
        if TARGET in node:
            yield str(node[TARGET])
        for value in node.values():
            yield from _names(value)
    elif _is_list(node):
        for value in node:
            yield from _names(value)


def _class_named(key: str, name: str, rooms: Sequence[str]) -> type:
    module, _, attribute = name.rpartition(".")
    # A module's own name, so that no attribute of a module (`oar.method.importance.base.torch.hub.load`) leads out of the rooms.
    if not (all(part.isidentifier() for part in name.split(".")) and _within(module, rooms)):
        raise ConfigError(
            f"{key} must name a class of {', '.join(rooms)}, but names {name}: to trust another module or package, type "
            "allow_targets=[its name]."
        )
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{key} names {name}, which is not there: {error}.") from error
    if not (isinstance(found, type) and _within(found.__module__, rooms)):
        raise ConfigError(f"{key} must name a class that is defined in {', '.join(rooms)}, but {name} is none.")
    return found


def _within(module: str, rooms: Sequence[str]) -> bool:
    return any(module == room or module.startswith(f"{room}.") for room in rooms)


def _is_list(node: Any) -> bool:
    return isinstance(node, Sequence) and not isinstance(node, str)  # OmegaConf's lists are no `list`


def _made(node: Any, classes: Mapping[str, type]) -> Any:
    if _is_list(node):
        return [_made(value, classes) for value in node]
    if not isinstance(node, Mapping):
        return node
    made = {name: _made(value, classes) for name, value in node.items() if name != TARGET}
    return classes[str(node[TARGET])](**made) if TARGET in node else made
