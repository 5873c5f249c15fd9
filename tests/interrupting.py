"""An exception before any instruction that one thread executes in a call, and what two ranks make of it.

Signal handlers run between two instructions of the main thread, whatever function it is in. A trace function can raise
at each of them in turn, in any thread: so all places are tried, and those where no signal would come as well.
"""

import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from queue import SimpleQueue
from types import FrameType
from typing import Any, Protocol

import numpy as np

from ringwide import CollectiveAborted

PATIENCE_SECONDS = 60


class Interrupted(BaseException):
    """As Ctrl-C: no Exception."""


@contextmanager
def interrupted_at(instruction: int) -> Iterator[None]:
    """Raise `Interrupted` in what is called inside, before its n-th instruction, if it gets there."""
    left = instruction

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left < 0:
                raise Interrupted
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


class Rank(Protocol):
    """What such a test needs of one rank."""

    def full(self, value: float) -> Any:
        """A tensor that holds this everywhere."""

    def call(self, tensor: Any) -> object:
        """Replace it by its sum over all ranks: what is interrupted."""

    def made(self) -> int:
        """How many calls this rank has made."""

    def made_for(self, thread: threading.Thread) -> None:
        """This thread calls, and is the one that joined as far as others know."""


class Two:
    """Rank 0 is interrupted at one instruction after the other; rank 1, in a thread of its own, never."""

    def __init__(self, ours: Rank, other: Rank) -> None:
        self.ours, self.other = ours, other
        self.interrupts = 0
        self._to_do: SimpleQueue[float | None] = SimpleQueue()
        self._outcomes: SimpleQueue[list[float] | BaseException] = SimpleQueue()
        self._thread = threading.Thread(target=self._live, daemon=True)

    def _live(self) -> None:
        while (value := self._to_do.get()) is not None:
            tensor = self.other.full(value)
            try:
                self.other.call(tensor)
                self._outcomes.put(numbers_in(tensor))
            except Exception as error:
                self._outcomes.put(error)

    def at_every_instruction(self, first: int = 0) -> None:
        """Until the call is over before it is interrupted."""
        self.interrupts = first
        self._thread.start()
        while self.interrupt(interrupted_at(self.interrupts), f"instruction {self.interrupts}"):
            self.interrupts += 1
        self.end()

    def end(self) -> None:
        self._to_do.put(None)
        self._thread.join(PATIENCE_SECONDS)

    def start(self) -> None:
        self._thread.start()

    def interrupt(self, interrupts: AbstractContextManager[object], where: str) -> bool:
        """Was the call interrupted? No two calls have the same sum, so that none can be another's."""
        self.ours.made_for(threading.current_thread())
        self.other.made_for(self._thread)
        first, second = self._values()
        tensor, made = self.ours.full(first), self.ours.made()
        self._to_do.put(first)
        was_interrupted = False
        try:
            with interrupts:
                self.ours.call(tensor)
        except Interrupted:
            was_interrupted = True
        found = numbers_in(tensor)
        if self.ours.made() == made:  # it was not even begun, and the other rank still waits for it
            assert found == [first], where
            self.ours.call(tensor)
            found = numbers_in(tensor)
        others = self._outcomes.get(timeout=PATIENCE_SECONDS)
        assert found in ([first], [2 * first]), f"{where}: torn, {found}"
        assert others == [2 * first] or isinstance(others, CollectiveAborted), f"{where}: the other rank: {others!r}"
        assert self._next_sum(second) == [2 * second], where
        assert self._outcomes.get(timeout=PATIENCE_SECONDS) == [2 * second], where
        assert numbers_in(tensor) == found, f"{where}: it changed after the exception had come out"
        return was_interrupted

    def _values(self) -> tuple[float, float]:
        self._count += 1
        return 3.0 * self._count + 1, 3.0 * self._count + 2

    _count = 0

    def _next_sum(self, value: float) -> list[float]:
        self._to_do.put(value)
        tensor = self.ours.full(value)
        self.ours.call(tensor)
        return numbers_in(tensor)


def numbers_in(tensor: Any) -> list[float]:
    """The different ones."""
    return list(map(float, np.unique(np.asarray(tensor))))
