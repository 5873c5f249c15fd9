"""Start and end of every command: its warnings, the form of its errors, its exit code.

Exit codes: 0 success, 1 a wrong number or output that cannot be written, 2 to 7 as in `ringwide.errors`, 128 + n ended
by signal n.
"""

import argparse
import errno
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import NoReturn

ENDED_BY_SIGNAL = 128
UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO}
CHOICES = "ringwide.compression"  # logs what `codec: auto` chooses, and why


class Parser(argparse.ArgumentParser):
    """Parser whose error texts never repeat a key that got among the arguments, as by `--key-file $(cat FILE)`."""

    def error(self, message: str) -> NoReturn:
        from ringwide.bootstrap.protection import concealed

        super().error(concealed(message))


LEVELS, LEVEL_VARIABLE = ("warning", "error", "info", "debug"), "RINGWIDE_LOG_LEVEL"
FORMATS, FORMAT_VARIABLE = ("text", "json"), "RINGWIDE_LOG_FORMAT"
"""The first of each is the default."""


def add_log_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--log-level",
        choices=LEVELS,
        help=f"what is logged on standard error; info: joining, transport, algorithm ({LEVEL_VARIABLE}, or warning)",
    )
    parser.add_argument(
        "--log-format", choices=FORMATS, help=f"text, or json: an object for each line ({FORMAT_VARIABLE}, or text)"
    )


def _chosen(option: str | None, variable: str, known: Sequence[str]) -> str:
    """The value of an option or of its variable, in which the processes that a command starts find it too."""
    from ringwide.errors import ConfigError

    chosen = option or os.environ.get(variable) or known[0]
    if chosen not in known:
        raise ConfigError(f"{variable}: {chosen!r}: should be one of {', '.join(known)}")
    if option is not None:
        os.environ[variable] = chosen
    return chosen


def finish(command: Callable[[], int], options: argparse.Namespace | None = None) -> int:
    """Run a command and return its exit code. A user's mistake or an interrupt ends it with one line, no traceback.

    `options`: those of the command, in which `add_log_options` may have a part.
    """
    from ringwide.errors import RingwideError

    line: logging.Formatter = _PlainLine()
    try:
        if _chosen(getattr(options, "log_format", None), FORMAT_VARIABLE, FORMATS) == "json":
            line = _JsonLine()
        level = _chosen(getattr(options, "log_level", None), LEVEL_VARIABLE, LEVELS)
        with log_shown(level, line):
            code = command()
        sys.stdout.flush()
        return code
    except RingwideError as error:
        _say_error(line, str(error))
        return error.exit_code
    except KeyboardInterrupt:
        return ENDED_BY_SIGNAL + signal.SIGINT
    except BrokenPipeError:  # the reader, `head` for example, has closed the pipe
        return ENDED_BY_SIGNAL + signal.SIGPIPE
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        _say_error(line, f"{error.filename or 'the output'} cannot be written: {error.strerror}")
        return 1
    finally:
        _drop_unwritable_output()


def _say_error(line: logging.Formatter, text: str) -> None:
    record = logging.LogRecord("ringwide", logging.ERROR, "", 0, text, None, None)
    print(line.format(record), file=sys.stderr)


def _drop_unwritable_output() -> None:
    """Discard output that cannot be written: Python would try again at exit, and complain."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def log_shown(level: str, line: logging.Formatter) -> Iterator[None]:
    """Show what is logged, and what `codec: auto` chooses, on standard error for the length of the block."""
    lowest = getattr(logging, level.upper())
    logger, choices = logging.getLogger("ringwide"), logging.getLogger(CHOICES)
    levels = logger.level, choices.level
    handler = logging.StreamHandler()
    handler.setFormatter(line)
    handler.addFilter(lambda record: _is_for_a_person(record, lowest))
    logger.addHandler(handler)
    logger.setLevel(min(lowest, logger.getEffectiveLevel()))
    choices.setLevel(min(lowest, logging.INFO))
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(levels[0])
        choices.setLevel(levels[1])


def _is_for_a_person(record: logging.LogRecord, lowest: int) -> bool:
    """Filter out records that loggers emit only because a log file has lowered their level."""
    return record.levelno >= (min(lowest, logging.INFO) if record.name.startswith(CHOICES) else lowest)


class _PlainLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return f"ringwide: {record.levelname.lower()}: {super().format(record)}"


class _JsonLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created).astimezone().isoformat(timespec="milliseconds")
        fields = {"time": time, "level": record.levelname.lower(), "logger": record.name}
        return json.dumps({**fields, "pid": record.process, "message": super().format(record)})
