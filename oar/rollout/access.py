"""Who can reach the engine, and its token: what it asks of them. The token never stands in a configuration."""

import ipaddress
import os
import secrets
import stat
from pathlib import Path

from oar.common.errors import ConfigError

TOKEN_VARIABLE = "OAR_ENGINE_TOKEN"
SHORTEST = 16  # characters; `secrets.token_urlsafe(32)` makes 43


def engine_token(file: str | None) -> str | None:
    """The token in `file` (rollout.token_file), else the one in the environment variable OAR_ENGINE_TOKEN, else None.

    Raises ConfigError for a file that others can read or that cannot be read, and for a token that is too short to be one.
    """
    where = TOKEN_VARIABLE if file is None else f"the file {file} (rollout.token_file)"
    token = os.environ.get(TOKEN_VARIABLE) if file is None else _read(Path(file))
    if token is None:
        return None
    if len(token) < SHORTEST or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(
            f"{where} must hold a token of {SHORTEST} or more ASCII characters without spaces; make one with"
            " python -c 'import secrets; print(secrets.token_urlsafe(32))'."
        )
    return token


def new_token() -> str:
    """For servers of our own that were given none."""
    return secrets.token_urlsafe(32)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server at `host`."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _read(file: Path) -> str:
    try:
        if stat.S_IMODE(file.stat().st_mode) & 0o077:
            raise ConfigError(f"rollout.token_file must be readable by its owner alone: chmod 600 {file}.")
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError as error:
        raise ConfigError(f"rollout.token_file cannot be read: {file} ({error.strerror}).") from error
