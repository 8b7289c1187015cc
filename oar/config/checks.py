"""A value that is out of range is one sentence with its key."""

from dataclasses import dataclass
from typing import Annotated, Any, get_type_hints

from oar.common.errors import ConfigError


@dataclass(frozen=True, slots=True)
class AtLeast:
    """Stands in the type of a field (`Annotated[int, AtLeast(2)]`); `oar.config.validated` refuses smaller values."""

    least: float


Positive = Annotated[int, AtLeast(1)]


def require(ok: bool, key: str, expected: str, came: object) -> None:
    """Raises ConfigError where `ok` is false."""
    if not ok:
        raise ConfigError(f"{key} must be {expected}, but is {came!r}.")


def one_of(key: str, value: str, choices: tuple[str, ...]) -> None:
    """Raises ConfigError where `value` is none of `choices`."""
    require(value in choices, key, "one of " + ", ".join(choices), value)


def check_values(schema: type, values: Any) -> None:
    """Raises ConfigError where one of `values` (OmegaConf's, by key) is an empty path, or below the bound in its field's type.

    Groups within a schema are not looked at: their dataclasses have checks of their own.
    """
    for key, kind in get_type_hints(schema, include_extras=True).items():
        if key.endswith("_dir"):  # an empty path would be the folder one stands in
            require(values[key] != "", key, "a folder", values[key])
        for bound in getattr(kind, "__metadata__", ()):
            require(values[key] >= bound.least, key, f"{bound.least:g} or more", values[key])
