"""The releases of vLLM that this package knows: routes, arguments and weight transfer are others in each series."""

from oar.common.errors import ConfigError

# requirements/base.in pins one of them. 0.24 has neither the routes nor the arguments; 0.25 to 0.31 were not looked at.
SERIES = "0.32"


def refuse_other_release(version: str | None, where: str) -> None:
    """Raises ConfigError where the vLLM `where` is not of the series; None: there is none."""
    if version is None or not f"{version}.".startswith(f"{SERIES}."):
        raise ConfigError(
            f"vLLM {where} must be {SERIES}.*, whose routes this package knows, but is {version or 'missing'}."
        )
