"""What TAB offers: `eval "$(oar completion bash)"` makes a shell ask `oar completion offers 'train method=oa'`.

Hydra's own script of bash completes `python FILE` only, and would import the whole program for each key.
"""

from collections.abc import Sequence
from pathlib import Path

from hydra import initialize_config_dir
from hydra._internal.core_plugins.bash_completion import BashCompletion
from hydra.core.global_hydra import GlobalHydra

from oar.command_line.overrides import CONF
from oar.command_line.programs import name_of, programs
from oar.common.errors import ConfigError

SHELLS = ("bash", "zsh")


def complete(arguments: Sequence[str]) -> None:
    """Print what a shell evaluates, or what the line may go on with. Raises ConfigError where neither is asked for."""
    match arguments:
        case [shell] if shell in SHELLS:
            print(Path(__file__).with_suffix(f".{shell}").read_text(), end="")
        case ["offers", typed]:
            print("\n".join(offers(typed)))
        case _:
            raise ConfigError(
                f"oar completion must name a shell, {' or '.join(SHELLS)}, but was given {list(arguments)}."
            )


def offers(typed: str) -> list[str]:
    """What the last word of a line may be. `typed`: what stands between `oar` and the cursor."""
    command, space, arguments = typed.lstrip().partition(" ")
    if not space:
        return [name for name in [*programs(), "completion"] if name.startswith(command)]
    if command == "completion":
        return [shell for shell in SHELLS if shell.startswith(arguments)]
    name = name_of(command)
    if not (CONF / f"{name}.yaml").exists():  # it takes options in place of keys
        return []
    with initialize_config_dir(str(CONF), version_base=None):
        completer = BashCompletion(GlobalHydra.instance().config_loader())
        return [str(word) for word in completer._query(config_name=name, line=arguments)]
