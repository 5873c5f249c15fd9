"""How every command begins and ends: where its warnings go, what its errors look like, with which code it exits.

Exit codes: 0 well, 1 a wrong number, 2 to 7 as in `ringwide.errors`, 128 + n ended by signal n.
"""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

ENDED_BY_SIGNAL = 128
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def finish(command: Callable[[], int]) -> int:
    """Run a command; a mistake of its user, or an interruption, ends it in one line and without a traceback."""
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
    except BrokenPipeError:
        # The reader, `head` for example, has had enough. Nothing more may be written, not even while exiting.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ENDED_BY_SIGNAL + signal.SIGPIPE


def run_until_signal(main: Coroutine[Any, Any, int]) -> int:
    """Run on uvloop. A signal cancels `main`, which may still tidy up; the code then tells which signal it was."""
    import uvloop

    return uvloop.run(_until_signal(main))


async def _until_signal(main: Coroutine[Any, Any, int]) -> int:
    received: list[int] = []
    task = asyncio.ensure_future(main)

    def end(number: int) -> None:
        received.append(number)
        task.cancel()

    for number in SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, end, number)
    try:
        return await task
    except asyncio.CancelledError:
        if not received:
            raise
        return ENDED_BY_SIGNAL + received[0]


@contextmanager
def warnings_shown() -> Iterator[None]:
    logger = logging.getLogger("ringwide")
    handler = logging.StreamHandler()
    handler.setFormatter(_PlainLine())
    logger.addHandler(handler)
    choices = logging.getLogger("ringwide.collective")  # which tells what `codec: auto` chooses, and why
    level = choices.level
    choices.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        choices.setLevel(level)


class _PlainLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return f"ringwide: {record.levelname.lower()}: {super().format(record)}"
