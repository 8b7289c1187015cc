"""How entry points end: one clear sentence and exit code 2 for what a user can mend, a traceback for what is our fault."""

import errno
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from oar.common.errors import OarError

EXIT_INTERRUPTED = 130
# No room, or no right, to write; or a file where a folder should be.
MENDABLE = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.EFBIG, errno.ENOTDIR)


@contextmanager
def explain_errors() -> Iterator[None]:
    """Turn an OarError into `error: <sentence>` on stderr and its exit code (mostly 2), Ctrl-C into exit code 130."""
    try:
        yield
    except OarError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        sys.exit(error.exit_code)
    except OSError as error:
        if error.errno not in MENDABLE:
            raise
        print(
            f"error: {error.strerror}: {error.filename}; make room or choose another folder.",
            file=sys.stderr,
            flush=True,
        )
        sys.exit(OarError.exit_code)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr, flush=True)
        sys.exit(EXIT_INTERRUPTED)


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
