"""A process that plays one rank, in one ring after the other, as it is ordered: one JSON object a line, each answered.

Every call is written down (history.py). A signal ends it as it ends any program with `asyncio.run` and `async with
ringwide.join(...)`: nothing here helps.
"""

import asyncio
import gc
import json
import logging
import os
import socket
import sys
import threading
import time
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
from tests.faults.history import RETURNED, Book, Entry
from tests.faults.known import digest, digest_of_sum, fill

import ringwide

Order = dict[str, Any]
Answer = dict[str, Any]
CONTROL_LINE_BYTES = 1 << 24
WEIGHTS_OF_STEPS = 500
COMPLAINT = "asyncio: "
"""How lines begin that nobody should ever see: of the event loop, or of the interpreter."""


class Lines(logging.Handler):
    """What was logged since this was asked last."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(f"{record.name}: {record.getMessage()}")

    def note_unraisable(self, what: Any) -> None:
        """A coroutine that nobody awaited, a socket that nobody closed: with `-W error` they end here."""
        self._lines.append(f"{COMPLAINT}{what.err_msg}: {what.exc_value!r} in {what.object!r}")

    def take(self) -> list[str]:
        lines, self._lines = self._lines, []
        return lines


class Rank:
    """Follows orders until there are no more."""

    def __init__(self, book: Book) -> None:
        self._book, self._lines = book, Lines()
        self._ring: ringwide.Ring | None = None
        self._run = ""
        self._members: tuple[int, ...] = ()
        self._spare: dict[tuple[int, str], list[Any]] = {}
        sys.unraisablehook = self._lines.note_unraisable
        for name in ("ringwide", "asyncio"):
            logging.getLogger(name).addHandler(self._lines)
            logging.getLogger(name).propagate = False

    async def follow(self, control: socket.socket) -> None:
        reader, self._writer = await asyncio.open_unix_connection(sock=control, limit=CONTROL_LINE_BYTES)
        with closing(self._writer):
            async with AsyncExitStack() as self._stack:
                while (order := await self._next_order(reader))["do"] != "exit":
                    answer = await getattr(self, f"_{order['do']}")(order)
                    self._say({"answer": {**answer, "lines": self._lines.take()}})

    async def _next_order(self, reader: asyncio.StreamReader) -> Order:
        """When nobody is left who could give one, it is over."""
        line = await reader.readline()
        return json.loads(line) if line else {"do": "exit"}

    def _say(self, words: dict[str, Any]) -> None:
        self._writer.write(json.dumps(words).encode() + b"\n")

    # -- orders

    async def _join(self, order: Order) -> Answer:
        self._run, self._members = order["run"], tuple(range(len(order["peers"])))
        config = ringwide.RingConfig(**order["settings"])
        joining = ringwide.join(rank=order["rank"], peers=order["peers"], config=config)
        try:
            self._ring = await self._stack.enter_async_context(joining)
        except ringwide.RingwideError as error:
            return _described(error)
        return {"outcome": RETURNED}

    async def _leave(self, _: Order) -> Answer:
        """And what is left behind of the ring: nothing, one hopes."""
        await self._stack.aclose()
        self._ring = None
        gc.collect()
        await asyncio.sleep(0)
        return _figures()

    async def _compute(self, order: Order) -> Answer:
        """Pure Python, and the event loop waits."""
        deadline = time.monotonic() + order["seconds"]
        while time.monotonic() < deadline:
            pass
        return {}

    async def _slow(self, _: Order) -> Answer:
        """The rank that this one finds slow."""
        assert self._ring is not None
        slow = self._ring.statistics().slow
        return {"slow": None if slow is None else slow.rank}

    async def _figures(self, _: Order) -> Answer:
        return _figures()

    async def _call(self, order: Order) -> Answer:
        """One call, or several at once."""
        self._say({"begun": time.monotonic()})
        calls = [self._one_call(order, index, count) for index, count in enumerate(order["counts"])]
        entries = await asyncio.gather(*calls)
        return {"ends": [_end(entry) for entry in entries]}

    async def _steps(self, order: Order) -> Answer:
        """Many calls, one after the other, and how long each took. Only those that went wrong are written down."""
        seconds = []
        for index in range(order["times"]):
            entry = await self._one_call({**order, "quiet": True}, index % WEIGHTS_OF_STEPS, order["count"])
            seconds.append(entry.ended - entry.begun)
            if not entry.returned:
                return {"seconds": seconds, "ends": [_end(entry)]}
        return {"seconds": seconds, "ends": []}

    # -- a call

    async def _one_call(self, order: Order, index: int, count: int) -> Entry:
        assert self._ring is not None
        dtype, kind, weight = order["dtype"], order["kind"], order["weight"] + index
        numbers = self._numbers(count, dtype)
        fill(numbers, self._ring.rank, weight)
        before, begun = digest(numbers), time.monotonic()
        error: BaseException | None = None
        try:
            await self._made(kind, numbers, order)
        except (ringwide.RingwideError, asyncio.CancelledError) as caught:
            error = caught
        ended = time.monotonic()
        described = {"outcome": RETURNED, "words": "", "lost": None} if error is None else _described(error)
        entry = Entry(
            run=self._run,
            rank=self._ring.rank,
            members=self._members,
            call=order["first"] + index,
            weight=weight,
            kind=kind,
            count=count,
            dtype=dtype,
            op=order["op"],
            before=before,
            after=digest(numbers),
            begun=begun,
            ended=ended,
            **described,
        )
        if not (order.get("quiet") and _is_right(entry)):
            self._book.write(entry)
        self._spare.setdefault((count, dtype), []).append(numbers)
        if isinstance(error, asyncio.CancelledError):
            raise error
        return entry

    async def _made(self, kind: str, numbers: Any, order: Order) -> None:
        assert self._ring is not None
        if kind == "allreduce":
            await self._ring.allreduce(numbers, order["op"])
        elif kind == "barrier":
            await self._ring.barrier()
        elif kind == "broadcast":
            await self._ring.broadcast(numbers)
        else:
            await self._ring.all_gather(numbers)

    def _numbers(self, count: int, dtype: str) -> Any:
        spare = self._spare.get((count, dtype))
        return spare.pop() if spare else np.empty(count, dtype)


def _figures() -> Answer:
    """What this process has. Threads in which asyncio resolves names are its own, and stay."""
    with open("/proc/self/statm") as statm:
        resident = int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    threads = [thread for thread in threading.enumerate() if not thread.name.startswith("asyncio_")]
    return {
        "resident": resident,
        "descriptors": len(os.listdir("/proc/self/fd")),
        "tasks": len(asyncio.all_tasks()),
        "threads": len(threads),
    }


def _is_right(entry: Entry) -> bool:
    exact = digest_of_sum(entry.members, entry.count, entry.weight, entry.dtype) if entry.kind == "allreduce" else ""
    return entry.returned and exact in ("", entry.after)


def _described(error: BaseException) -> dict[str, Any]:
    return {"outcome": type(error).__name__, "words": str(error), "lost": getattr(error, "rank", None)}


def _end(entry: Entry) -> Answer:
    return {"outcome": entry.outcome, "words": entry.words, "lost": entry.lost, "ended": entry.ended}


def live(control: socket.socket, book: Path, loop: str) -> None:
    """The whole life of such a process."""
    import uvloop

    factory = uvloop.new_event_loop if loop == "uvloop" else asyncio.SelectorEventLoop
    try:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(Rank(Book(book)).follow(control))
    except KeyboardInterrupt:
        os._exit(130)  # the usual code, without the usual traceback
