"""Start and end of every command: its warnings, the form of its errors, its exit code.

Exit codes: 0 success, 1 a wrong number or output that cannot be written, 2 to 7 as in `ringwide.errors`, 128 + n ended
by signal n.
"""

import argparse
import errno
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

ENDED_BY_SIGNAL = 128
UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO}
CHOICES = "ringwide.compression"  # logs what `codec: auto` chooses, and why


class Parser(argparse.ArgumentParser):
    """Parser whose error texts never repeat a key that got among the arguments, as by `--key-file $(cat FILE)`."""

    def error(self, message: str) -> NoReturn:
        from ringwide.bootstrap.protection import concealed

        super().error(concealed(message))


def finish(command: Callable[[], int]) -> int:
    """Run a command and return its exit code. A user's mistake or an interrupt ends it with one line, no traceback."""
    from ringwide.errors import RingwideError

    try:
        with warnings_shown():
            code = command()
        sys.stdout.flush()
        return code
    except RingwideError as error:
        print(f"ringwide: error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return ENDED_BY_SIGNAL + signal.SIGINT
    except BrokenPipeError:  # the reader, `head` for example, has closed the pipe
        return ENDED_BY_SIGNAL + signal.SIGPIPE
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        print(f"ringwide: error: {error.filename or 'the output'} cannot be written: {error.strerror}", file=sys.stderr)
        return 1
    finally:
        _drop_unwritable_output()


def _drop_unwritable_output() -> None:
    """Discard output that cannot be written: Python would try again at exit, and complain."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def warnings_shown() -> Iterator[None]:
    """Show warnings, and what `codec: auto` chooses, on standard error for the length of the block."""
    logger = logging.getLogger("ringwide")
    handler = logging.StreamHandler()
    handler.setFormatter(_PlainLine())
    handler.addFilter(_is_for_a_person)
    logger.addHandler(handler)
    choices = logging.getLogger(CHOICES)
    level = choices.level
    choices.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        choices.setLevel(level)


def _is_for_a_person(record: logging.LogRecord) -> bool:
    """Filter out records that loggers emit only because a log file has lowered their level."""
    return record.levelno >= (logging.INFO if record.name.startswith(CHOICES) else logging.WARNING)


class _PlainLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return f"ringwide: {record.levelname.lower()}: {super().format(record)}"
