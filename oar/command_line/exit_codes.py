"""How entry points end: one clear sentence and exit code 2 for what a user can mend, a traceback for what is our fault."""

import errno
import os
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from oar.common.errors import OarError

EXIT_INTERRUPTED = 130
STDOUT = 1  # its file descriptor
EXIT_UNREAD = 141  # 128 + SIGPIPE, as of any program whose output goes to `head`
# No room, or no right, to write; or a file where a folder should be.
MENDABLE = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.EFBIG, errno.ENOTDIR)


@contextmanager
def explain_errors() -> Iterator[None]:
    """Turn an OarError into `error: <sentence>` on stderr and its exit code (mostly 2), Ctrl-C into exit code 130.

    Where nobody reads stdout any more the program ends without a word, with exit code 141.
    """
    try:
        yield
        sys.stdout.flush()  # a reader that has gone is seen here, not when Python ends
    except BrokenPipeError:
        if not _unread():  # a connection of another kind
            raise
        sys.exit(EXIT_UNREAD)
    except OarError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        sys.exit(error.exit_code)
    except OSError as error:
        if error.errno not in MENDABLE:
            raise
        # A write, unlike an open, does not know its file.
        where = "" if error.filename is None else f": {error.filename}"
        print(
            f"error: {error.strerror}{where}; make room or choose another folder.",
            file=sys.stderr,
            flush=True,
        )
        sys.exit(OarError.exit_code)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr, flush=True)
        sys.exit(EXIT_INTERRUPTED)


def _unread() -> bool:
    """Whether stdout is a pipe that has no reader; what is left to be written goes nowhere then."""
    poll = select.poll()
    poll.register(STDOUT, 0)
    if not any(event & select.POLLERR for _, event in poll.poll(0)):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), STDOUT)  # or Python complains once more when it ends
    return True


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM ends the run like Ctrl-C, so that both leave by the same door."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
