"""Programs: `@entry` makes a function of a composed configuration one, which explains what a user can mend."""

import os
from argparse import Namespace
from collections.abc import Callable
from contextlib import nullcontext
from functools import wraps
from pathlib import Path

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from oar.command_line.exit_codes import explain_errors, terminable
from oar.command_line.overrides import CONF, mistake
from oar.common.errors import ConfigError

OURS = "The program itself raised this, after its configuration was composed: it is ours to mend."


def entry(main: Callable[[DictConfig], None]) -> Callable[..., None]:
    """The program of conf/NAME.yaml, where NAME is that of main's file: Hydra composes it with the command line, and calls main.

    Every mistake that Hydra or main finds in a key, a group, a value or the output folder is one sentence and exit code 2
    (`oar.command_line.exit_codes`). What else goes wrong in main keeps its traceback. With a configuration as its
    argument it calls main at once."""
    file = Path(main.__code__.co_filename)
    name = file.parent.name if file.stem == "__main__" else file.stem

    @wraps(main)
    def task(config: DictConfig) -> None:
        multirun = HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN
        try:
            with (
                nullcontext() if multirun else explain_errors()
            ):  # a run that ends the process would end the whole sweep
                main(config)
        except Exception as error:
            error.add_note(OURS)
            raise

    @wraps(main)
    def program(config: DictConfig | None = None) -> None:
        os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra lets errors through, in place of printing them and exiting with 1
        with explain_errors(), terminable():
            try:
                hydra.main(version_base=None, config_path=str(CONF), config_name=name)(task)(config)
            except (HydraException, OmegaConfBaseException, OSError, ValueError) as error:
                if OURS in getattr(error, "__notes__", ()) or isinstance(error, BrokenPipeError):
                    raise
                typed = get_args_parser().parse_args()
                sentence = _sentence(name, typed, error)
                if not typed.help or typed.overrides:
                    raise ConfigError(sentence) from error
                # Hydra composes no help without a choice.
                print(f"{(CONF / f'{name}.yaml').read_text(encoding='utf-8')}\n{sentence}")

    return program


def _sentence(name: str, typed: Namespace, error: Exception) -> str:
    if isinstance(error, OSError) and not isinstance(error, HydraException):  # a missing choice is both
        return f"{error.filename} cannot be made or written ({error.strerror}): choose another output_dir."
    if typed.config_dir and not Path(typed.config_dir).is_dir():  # or its choices would be told as the mistake
        return f"--config-dir must be a folder, but {typed.config_dir} is none: correct its path."
    return mistake(name, typed.overrides, error, multirun=typed.multirun)
