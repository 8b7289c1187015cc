"""The runs of a Hydra multirun: servers are kept from one to the next, and one that fails does not end the others."""

import atexit
import shlex
import sys
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from oar.command_line.overrides import own_configuration, quoted
from oar.common.errors import ConfigError, FailedRunError, OarError
from oar.config import TrainConfig, validated
from oar.launch.supervisor import train
from oar.rollout.server.fleet import KeptFleet
from oar.runs.folder import finished
from oar.runs.naming import named

KEPT = KeptFleet()  # of this process; a launcher that runs several at a time (joblib) has one in each of its processes
atexit.register(KEPT.stop)


def train_one_of_many(config: DictConfig) -> None:
    """One run of a sweep, in its own folder. A finished one is left as it is.

    Where it fails, the sentence and the command that runs it alone are told at once. Raises FailedRunError: Hydra
    goes on to the next run and ends with exit code 1 after the last.
    """
    hydra = HydraConfig.get()
    folder = Path(hydra.runtime.output_dir)
    name = f"{folder.name} ({', '.join(hydra.overrides.task) or 'no overrides'})"
    try:
        cfg = named(validated(config, TrainConfig), hydra.overrides.task, group=folder.parent.name)
        if cfg.resume == "auto" and finished(folder, cfg) is not None:
            print(f"{name}: has finished before", flush=True)
            return
        print(f"{name}: begins", flush=True)
        code = train(cfg, folder, KEPT)
        if code:
            raise OarError(f"The learner ended with exit code {code}; what it said stands above.")
    except OarError as error:
        if not isinstance(error, ConfigError):  # which refuses a run before it has touched them
            KEPT.stop()  # what state the failed run has left them in, nobody knows
        alone = [*own_configuration(), *hydra.overrides.task, f"output_dir={quoted(folder)}", "resume=auto"]
        print(
            f"{name}: error: {error}\nIt runs alone with: python -m experiments.train {shlex.join(alone)}",
            file=sys.stderr,
            flush=True,
        )
        raise FailedRunError(f"{name} failed: {error}") from error
    except BaseException:
        KEPT.stop()
        raise
