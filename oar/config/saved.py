"""The configuration that a run left in its folder. The folder may be somebody else's, so it is read as data and nothing more."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from yaml import YAMLError

from oar.common.errors import DataError
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


def _texts(node: Any) -> Iterator[str]:
    if isinstance(node, str):
        yield node
    elif isinstance(node, dict | list):
        for value in node.values() if isinstance(node, dict) else node:
            yield from _texts(value)
