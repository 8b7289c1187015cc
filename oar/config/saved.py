"""The configuration that a run left in its folder. The folder may be somebody else's, so it is read as data and nothing more."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from yaml import YAMLError

from oar.common.errors import DataError, OarError
from oar.config.build import validated
from oar.config.runs import TrainConfig


def saved_config(file: Path) -> DictConfig:
    """A YAML file of keys and values.

    A run resolves its configuration before it writes it down. One that would still look something up when it is read
    (`${oc.env:HOME}`) is refused: what it found would end in a table. Raises DataError for that and where it is no such file.
    """
    try:
        config = OmegaConf.load(file)
    except (YAMLError, ValueError) as error:
        raise DataError(f"{file} must hold YAML, but does not: {str(error).splitlines()[0]}.") from error
    if not isinstance(config, DictConfig):
        raise DataError(f"{file} must hold keys and values, but holds something else.")
    for text in _texts(OmegaConf.to_container(config, resolve=False)):
        if "${" in text:
            raise DataError(
                f"{file} must hold plain values, as a run writes them, but holds {text!r}: write its value."
            )
    return config


def saved_settings(file: Path, allow_targets: Sequence[str]) -> TrainConfig:
    """config.yaml of a training run. What may be built is what was typed now, whatever the file says of it.

    Raises DataError as `saved_config`, ConfigError where the settings do not fit.
    """
    return replace(validated(saved_config(file), TrainConfig), allow_targets=list(allow_targets))


def changed_settings(file: Path, cfg: TrainConfig) -> str:
    """What decides a run and is another in a config.yaml, as "gating.tau was 0.4 and is 0.5"; empty where that cannot be read."""
    try:
        before = saved_settings(file, ())
    except (OSError, OarError):
        return ""
    return ", ".join(_changes(before.computed(), cfg.computed()))


def _changes(before: Mapping[str, Any], now: Mapping[str, Any], above: str = "") -> Iterator[str]:
    for key in dict.fromkeys([*before, *now]):
        old, new = before.get(key), now.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _changes(old, new, f"{above}{key}.")
        elif old != new:
            yield f"{above}{key} was {old} and is {new}"


def _texts(node: Any) -> Iterator[str]:
    if isinstance(node, str):
        yield node
    elif isinstance(node, dict | list):
        for value in node.values() if isinstance(node, dict) else node:
            yield from _texts(value)
