"""Where nodes run is for others to say: a fleet starts them, hears them, signals them and waits for their end."""

import asyncio
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Exit:
    """How a node ended. A negative code is the signal that killed it, as in `subprocess`."""

    rank: int
    code: int
    last_words: tuple[str, ...]
    where: str = ""  # the host, where there are several
    fate: str = ""  # what became of it, if there is more to say than its code

    def __str__(self) -> str:
        who = f"node {self.rank} on {self.where}" if self.where else f"node {self.rank}"
        if self.fate:
            return f"{who} {self.fate}"
        if self.code >= 0:
            return f"{who} ended with exit code {self.code}"
        return f"{who} was killed by {name_of_signal(-self.code)}"


class Node(Protocol):
    """One node that was started."""

    @property
    def rank(self) -> int: ...

    @property
    def ended(self) -> "asyncio.Future[Exit]": ...

    def signal(self, number: int) -> None:
        """Does nothing to one that has ended."""


class Start(Protocol):
    """What is needed to start one node."""

    async def start(self, rank: int, on_line: Callable[[str], None]) -> Node:
        """`on_line` hears what the node says on standard output; what it raises ends the node, and is how it ends."""
        ...


def name_of_signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # those for real-time use have no names
        return f"signal {number}"
