"""A store in the memory of one process, for ranks that are threads."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

PATIENCE_SECONDS = 40.0
Result = TypeVar("Result")


class BlindStore:
    """Waits for a key, and cannot say whether it is there."""

    def __init__(self, seconds: float = PATIENCE_SECONDS) -> None:
        self.values: dict[str, bytes] = {}
        self._seconds, self._changed = seconds, threading.Condition()

    def set(self, key: str, value: str, /) -> None:
        with self._changed:
            self.values[key] = value.encode()
            self._changed.notify_all()

    def get(self, key: str, /) -> bytes:
        with self._changed:
            if not self._changed.wait_for(lambda: key in self.values, self._seconds):
                raise RuntimeError(f"wait timeout after {self._seconds:g} s, keys: {key}")
            return self.values[key]


class MemoryStore(BlindStore):
    """Says whether keys are there, as the stores of torch do."""

    def check(self, keys: list[str], /) -> bool:
        return all(key in self.values for key in keys)


def on_every_thread(size: int, act: Callable[[int], Result]) -> list[Result | Exception]:
    """What act(rank) returns or raises, by rank, each in a thread of its own."""

    def outcome(rank: int) -> Result | Exception:
        try:
            return act(rank)
        except Exception as error:
            return error

    with ThreadPoolExecutor(size) as threads:
        begun = [threads.submit(outcome, rank) for rank in range(size)]
        until = time.monotonic() + PATIENCE_SECONDS
        return [one.result(timeout=until - time.monotonic()) for one in begun]
