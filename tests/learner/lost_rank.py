"""The second of two ranks gets a signal: `python -m oar.learner.launch 2 tests.learner.lost_rank NUMBER RANK_TIMEOUT_S`."""

import os
import sys

from oar.command_line.exit_codes import explain_errors
from oar.learner.distributed import joined
from tests.learner.on_ranks import config


def main(number: int, timeout_s: int) -> None:
    cfg = config("learner.ranks=2", f"learner.rank_timeout_s={timeout_s}").learner
    with explain_errors(), joined(cfg) as ranks:
        ranks.wait()
        if ranks.rank == 1:
            os.kill(os.getpid(), number)
        ranks.wait()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
