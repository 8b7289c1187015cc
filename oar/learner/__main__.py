"""The learner's process: `python -m oar.learner --config run/config.yaml ...`, started by the supervisor."""

import argparse
import sys
from pathlib import Path

from oar.command_line.exit_codes import explain_errors
from oar.config.saved import saved_settings


def main() -> int:
    """Run the training that `--config` describes; exit code 2 and one sentence where something can be mended."""
    parser = argparse.ArgumentParser(prog="python -m oar.learner", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="the run's resolved configuration")
    parser.add_argument("--model", type=Path, required=True, help="folder of the starting model")
    parser.add_argument("--engine-urls", required=True, nargs="+", help="the servers of the rollout engine")
    parser.add_argument("--sync-folder", type=Path, required=True, help="where weights pass through")
    parser.add_argument(
        "--allow-targets", nargs="*", default=[], help="as in conf/train.yaml; the file's own do not count"
    )
    arguments = parser.parse_args()
    with explain_errors():
        from oar.learner.run import run_training  # after the arguments are known to be right: torch takes seconds

        cfg = saved_settings(arguments.config, arguments.allow_targets)
        run_training(cfg, arguments.config.parent, arguments.model, arguments.engine_urls, arguments.sync_folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
