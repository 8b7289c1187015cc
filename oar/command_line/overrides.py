"""What is wrong with overrides that Hydra refuses, in one sentence that says what was probably meant."""

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from oar.common.errors import ConfigError, did_you_mean

CONF = Path(__file__).parents[2] / "conf"
MISSING = "???"


GOES_ON = {"resume": "type the same command again to go on"}


def key_of(override: str) -> str:
    """The key or group of an override that Hydra can read."""
    return str(OverridesParser.create().parse_override(override).key_or_group)


def quoted(value: object) -> str:
    """The text of `value` as Hydra reads it whatever it holds but interpolations, `'it\\'s here'`; a plain path stays one."""
    text = str(value)
    if "/" in text and re.fullmatch(r"[A-Za-z0-9_./-]+", text):
        return text
    # Within quotes a backslash is itself, unless it stands before a quote or at the end.
    return "'" + re.sub(r"(\\*)('|\Z)", lambda end: 2 * end[1] + end[2].replace("'", r"\'"), text) + "'"


def overrides_of_runs(typed: Sequence[str], own: Collection[str], said: Mapping[str, str]) -> list[str]:
    """Of the overrides typed for a program of many runs those of its runs: all but output_dir and its `own` keys.

    `said`: keys of a run that the program sets itself, with what to do instead. Raises ConfigError where one was typed.
    """
    found = []
    for text in typed:
        key = key_of(text)
        if instead := {**said, **GOES_ON}.get(key):
            raise ConfigError(f"{key} cannot be given here: {instead}.")
        if key.split(".")[0] not in {*own, "output_dir"}:
            found.append(text)
    return found


def own_configuration() -> list[str]:
    """The `--config-dir FOLDER` that this program was started with, for those that it starts; [] where there is none."""
    if not HydraConfig.initialized():
        return []
    sources = HydraConfig.get().runtime.config_sources
    # Relative, so that what those programs record of themselves names no folder of this machine above this one.
    typed = [os.path.relpath(one.path) for one in sources if one.provider == "command-line"]
    return ["--config-dir", *typed] if typed else []


def mistake(program: str, overrides: Sequence[str], error: Exception, *, multirun: bool = False) -> str:
    """Why conf/PROGRAM cannot be composed with `overrides`. `error`: what Hydra raised, told where none of them is at fault."""
    parsed = []
    for text in overrides:
        try:
            override = OverridesParser.create().parse_override(text)
        except HydraException:
            return _unreadable(text)
        if not override.key_or_group:
            return _unreadable(text)
        if override.is_sweep_override() and not multirun:
            return (
                f"{override.key_or_group} has one value in a run, but came as {text}: type {override.key_or_group}=[...] for a "
                "list, or -m before the overrides for a run with each value."
            )
        parsed.append(override)
    started = GlobalHydra.instance().is_initialized()  # within a program that runs already: Hydra starts only once
    with nullcontext() if started else initialize_config_dir(str(CONF), version_base=None):
        known = _Known(program, parsed)
        for override in parsed:
            if wrong := known.wrong_choice(override) or known.wrong_key(override):
                return wrong
        for group in known.missing - {override.key_or_group for override in parsed}:
            return f"{group} must be chosen: {group}={' or '.join(known.choices(group))}."
    return str(error.__cause__ or error).partition("\n")[0]


def _unreadable(text: str) -> str:
    if not text.partition("=")[0] or "=" not in text:
        return f"{text!r} is no override: type KEY=VALUE."
    return (
        f"{text!r} cannot be read: close its quotes and brackets, and put quotes within the shell's around a value that holds "
        "one of = , : ( ) [ ] { }, as in 'KEY=\"VALUE\"'."
    )


class _Known:
    """What the configuration of a program holds; within a context that says where conf/ is."""

    def __init__(self, program: str, overrides: Sequence[Override]) -> None:
        config = _loaded(program, [])
        chosen = OmegaConf.to_container(config.hydra.runtime.choices)
        assert isinstance(chosen, dict)
        self.program = program
        self.groups = {str(group) for group in chosen}
        self.missing = {str(group) for group, choice in chosen.items() if choice == MISSING}
        self.own = {str(key) for key in config}
        self.unset = {str(key) for key in config if OmegaConf.is_missing(config, key)}
        with suppress(HydraException):  # choices of groups decide on keys, where there are such choices
            config = _loaded(program, [str(one.input_line) for one in overrides if options_of(one.key_or_group)])
        values = OmegaConf.to_container(config)
        self.keys = set(_keys(values))
        self.empty = set(_keys(values, of=lambda value: value == {}))  # whoever writes an entry there chooses its name

    def choices(self, group: str) -> list[str]:
        """Of a group; where they give values to keys of the whole configuration, those whose keys the program has.

        Where one must be chosen, those that set what the program leaves unset.
        """
        found, needed = [], self.unset if group in self.missing else set()
        for option in options_of(group):
            file = CONF / group / f"{option}.yaml"
            whole = file.exists() and "@package _global_" in file.read_text()
            if not whole or needed <= {str(key) for key in OmegaConf.load(file)} - {"defaults"} <= self.own:
                found.append(option)
        return found

    def wrong_choice(self, override: Override) -> str | None:
        """What is wrong with the choice of a group."""
        group = override.key_or_group
        if group not in self.groups or override.is_delete():
            return None
        value = list(override.sweep_string_iterator()) if override.is_sweep_override() else override.value()
        choices = self.choices(group)
        for choice in map(str, value if isinstance(value, list) else [value]):
            if choice not in choices:
                near = did_you_mean(choice, choices)
                return f"{group} must be one of {', '.join(choices)}, but is {choice!r}{near or '.'}"
        return None

    def wrong_key(self, override: Override) -> str | None:
        """What is wrong with a key or group."""
        key, text = override.key_or_group, override.input_line
        there = key in self.groups or key in self.keys
        if override.is_force_add() or (override.is_add() and not there):
            return None
        if override.is_add():
            merges = not override.is_sweep_override() and isinstance(override.value(), dict | list)
            return None if merges else f"{key} is there already: leave out the + of {text}."
        if there:
            return None
        if options_of(key):
            groups = ", ".join(sorted(group for group in self.groups if not group.startswith("hydra/")))
            return f"{self.program} has no group {key}; what it has: {groups or 'none'}."
        above = key.rpartition(".")[0]
        if above in self.empty and not override.is_delete():
            return f"{above} holds nothing yet, and a new entry takes a plus: +{text}"
        near = did_you_mean(key, (one for one in self.keys | self.groups if _of_hydra(one) == _of_hydra(key)))
        return f"{self.program} has no key {key}{near or ': --cfg job prints all, and + before a key adds one.'}"


def _loaded(program: str, overrides: list[str]) -> DictConfig:
    """Composed as for a multirun, in which a group may be without a choice."""
    loader = GlobalHydra.instance().config_loader()
    return loader.load_configuration(program, overrides, RunMode.MULTIRUN)


def options_of(group: str) -> list[str]:
    """The choices of a group; empty for what is none."""
    return list(GlobalHydra.instance().config_loader().get_group_options(group, ObjectType.CONFIG))


def _of_hydra(key: str) -> bool:
    return key.startswith(("hydra.", "hydra/"))


def _keys(node: Any, of: Callable[[Any], bool] = lambda _: True, above: str = "") -> Iterator[str]:
    """The dotted names of all values and of all that holds some, where they are such as `of` asks for."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            if of(value):
                yield f"{above}{key}"
            yield from _keys(value, of, f"{above}{key}.")
