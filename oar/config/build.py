"""From what Hydra composed to validated dataclasses and to the objects it names.

OmegaConf is imported where it is used: a learner whose configuration was made in Python needs none.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from importlib import import_module
from types import FunctionType, UnionType
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_type_hints

from oar.common.errors import ConfigError, OarError, did_you_mean
from oar.config.checks import check_values

if TYPE_CHECKING:
    from omegaconf import DictConfig, ListConfig

Settings = TypeVar("Settings")

TARGET, PARTIAL = "_target_", "_partial_"
# Where the classes are that any configuration may name. It may come with a folder of somebody else's: what is here must do no
# harm when it is made, whatever its arguments are.
ROOMS = (
    "oar.method.importance",
    "oar.method.surrogates",
    "oar.method.auxiliary",
    "oar.tasks.data.sources",
    "oar.tasks.data.procedural",
    "oar.tasks.data.procedural_teaching",
    "oar.tasks.data.demonstrations",
    "oar.tasks.warm_start",
    "oar.tasks.words.parts",
    "oar.tasks.words.teaching",
    "oar.tasks.sheets.generator",
    "oar.tasks.sheets.teaching",
    "experiments.fidelity.signals",
)
FUNCTION_ROOMS = ("oar.tasks.rewards",)


def build(key: str, target: Any, allowed: Sequence[str] = ()) -> Any:
    """The object that the mapping under `key` describes: `_target_` names its class, all else are its arguments.

    An argument may be such a mapping again, at any depth. A class must be defined in one of ROOMS or in a module or package of
    `allowed`, which the user typed as `allow_targets`. Raises ConfigError where one is not, before anything is imported from
    elsewhere or made, and where arguments do not fit.
    """
    if not isinstance(target, Mapping) or TARGET not in target:
        raise ConfigError(f"{key} must name a class by {TARGET}, but is {target!r}.")
    return _built(key, target, (type,), (*ROOMS, *allowed))


def build_function(key: str, target: Any, allowed: Sequence[str] = ()) -> Callable[..., Any]:
    """The same for what is called later: `_target_` may name a function too, whose other keys are keyword arguments.

    A function is not called here, so Hydra's `_partial_: true` may stand beside it and changes nothing. Raises ConfigError as
    `build`, and for an object that cannot be called.
    """
    if not isinstance(target, Mapping) or not target.get(TARGET):
        raise ConfigError(
            f"{key}.{TARGET} must name a function or a class, e.g. mypkg.reward, but {key} is {target!r}."
        )
    built = _built(key, target, (type, FunctionType), (*FUNCTION_ROOMS, *allowed))
    if not callable(built):
        raise ConfigError(f"{key} must name a function or a class with __call__, but {target[TARGET]} has none.")
    return built


def _built(key: str, target: Mapping[str, Any], kinds: tuple[type, ...], rooms: Sequence[str]) -> Any:
    found = {name: _named(key, name, kinds, rooms) for name in _names(target)}
    try:
        return _made(target, found)
    except (TypeError, ValueError, OarError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise ConfigError(f"{key} cannot be built from {target}: {reason}.") from error


def validated(config: "DictConfig | ListConfig", schema: type[Settings]) -> Settings:
    """The composed configuration as dataclasses. Raises ConfigError in one sentence for whatever is wrong with it."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException, ValidationError

    try:
        merged = OmegaConf.merge(OmegaConf.structured(schema), config)
        check_values(schema, merged)  # first: a schema's own checks may count on them
        settings = OmegaConf.to_object(merged)
    except OmegaConfBaseException as error:
        reason = str(error).splitlines()[0]
        key = f" ({error.full_key})" if getattr(error, "full_key", None) else ""
        # Of a key that is not there, the dataclass that should have it says what it has.
        names = [field.name for field in fields(error.object_type)] if is_dataclass(error.object_type) else []
        if isinstance(error, ValidationError) and (wanted := _keys_of(error.object_type, error.key)):
            raise ConfigError(f"{error.full_key} must hold {', '.join(wanted)}, but is {error.value!r}.") from error
        near = did_you_mean(str(error.key), names) if isinstance(error, KeyError | AttributeError) else ""
        raise ConfigError(f"The configuration does not fit: {reason}{key}{near or '.'}") from error
    assert isinstance(settings, schema)
    return settings


def _keys_of(schema: Any, name: Any) -> list[str]:
    """Of the group that a field of a schema holds; empty where it holds a value."""
    kind = get_type_hints(schema).get(name) if is_dataclass(schema) else None
    kinds = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    return [field.name for one in kinds if is_dataclass(one) for field in fields(one)]


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


def _named(key: str, name: str, kinds: tuple[type, ...], rooms: Sequence[str]) -> Any:
    """The class, or of `kinds` the function, of that name."""
    module, _, attribute = name.rpartition(".")
    what = "a class" if kinds == (type,) else "a function or a class"
    # A module's own name, so that no attribute of a module (`oar.method.importance.base.torch.hub.load`) leads out of the rooms.
    if not (all(part.isidentifier() for part in name.split(".")) and _within(module, rooms)):
        raise ConfigError(
            f"{key} must name {what} of {', '.join(rooms)}, but names {name}: to trust another module or package, type "
            "allow_targets=[its name]."
        )
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{key} names {name}, which is not there: {error}.") from error
    if not (isinstance(found, kinds) and _within(found.__module__, rooms)):
        raise ConfigError(f"{key} must name {what} that is defined in {', '.join(rooms)}, but {name} is none.")
    return found


def _within(module: str, rooms: Sequence[str]) -> bool:
    return any(module == room or module.startswith(f"{room}.") for room in rooms)


def _is_list(node: Any) -> bool:
    return isinstance(node, Sequence) and not isinstance(node, str)  # OmegaConf's lists are no `list`


def _made(node: Any, named: Mapping[str, Any]) -> Any:
    if _is_list(node):
        return [_made(value, named) for value in node]
    if not isinstance(node, Mapping):
        return node
    made = {name: _made(value, named) for name, value in node.items() if name != TARGET}
    if TARGET not in node:
        return made
    found = named[str(node[TARGET])]
    if isinstance(found, type):
        return found(**made)
    arguments = {name: value for name, value in made.items() if name != PARTIAL}
    return partial(found, **arguments) if arguments else found
