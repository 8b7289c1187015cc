"""A value that is out of range is one sentence with its key."""

from oar.common.errors import ConfigError


def require(ok: bool, key: str, expected: str, came: object) -> None:
    """Raises ConfigError where `ok` is false."""
    if not ok:
        raise ConfigError(f"{key} must be {expected}, but is {came!r}.")


def one_of(key: str, value: str, choices: tuple[str, ...]) -> None:
    """Raises ConfigError where `value` is none of `choices`."""
    require(value in choices, key, "one of " + ", ".join(choices), value)
