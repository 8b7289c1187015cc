"""The second of two ranks gets a signal: `python -m oar.learner.launch 2 tests.learner.lost_rank NUMBER FILE`."""

import os
import sys
import time
from pathlib import Path

from oar.cli import explain_errors
from oar.learner.distributed import joined
from tests.learner.on_ranks import config


def main(number: int, file: Path) -> None:
    cfg = config("learner.ranks=2", "learner.rank_timeout_s=20").learner
    with explain_errors(), joined(cfg) as ranks:
        ranks.wait()
        if ranks.rank == 1:
            file.write_text(str(time.time()))
            os.kill(os.getpid(), number)
        ranks.wait()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
