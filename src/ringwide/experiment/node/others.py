"""How a node finds the others: they are listed in a file, or they meet at a store."""

import asyncio
import os
import re
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from ringwide.bootstrap.launcher_env import AssignedRank
from ringwide.bootstrap.listen import listen
from ringwide.bootstrap.peers import Address, load_peers
from ringwide.bootstrap.rendezvous import LOOPBACK, Store, StoreBoard, find_peers
from ringwide.config.ring_config import RingConfig
from ringwide.errors import ConfigError, JoinError

Result = TypeVar("Result")
HOST_VARIABLE = "RINGWIDE_HOST"
_RUN = "run"
_NAME = re.compile(r"\w[\w.,= -]{0,300}")


@dataclass(frozen=True, slots=True)
class Met:
    """What `join` needs to know, and the name of the run if rank 0 has told it."""

    peers: str | list[str]
    listener: socket.socket | None = None
    run: str = ""
    store: object = None  # held by whoever joins: on rank 0 it would end, while others still read in it


class Others(Protocol):
    """The other nodes, before there is a ring."""

    @property
    def size(self) -> int: ...

    @property
    def counted_in(self) -> str:
        """What the size is known from, in words."""
        ...

    @property
    def together(self) -> bool:
        """Were all nodes started by one command? Then rank 0 speaks for all, and they share its run."""
        ...

    async def meet(self, config: RingConfig, run: str | None) -> Met:
        """Called once for each ring. `run` is how rank 0 has named it; the others learn that."""
        ...


def others_of(place: AssignedRank, listener: socket.socket | None = None) -> Others:
    """`listener` is where this node listens already, on its address in the list; for one ring."""
    return AtAStore(place) if place.peers is None else Listed(place.peers, place, listener)


class Listed:
    """Everybody's address stands in a file."""

    together = False

    def __init__(self, peers: str, place: AssignedRank | None = None, listener: socket.socket | None = None) -> None:
        self._peers, self._listener, self.size = peers, listener, len(load_peers(peers))
        self.counted_in = f"{peers} names {self.size} peers"
        if place is not None and place.size not in (None, self.size):
            raise ConfigError(f"{place.names[-1]} is {place.size}, but {self.counted_in}; make them equal")

    async def meet(self, config: RingConfig, run: str | None) -> Met:
        return Met(self._peers, self._listener, run or "")


class AtAStore:
    """Everybody tells a store where it listens."""

    together = True

    def __init__(self, place: AssignedRank) -> None:
        self._place, self.size = place, place.size or 1
        self.counted_in = f"{place.names[-1]} is {self.size}"
        self._store: Any = None
        self._rings = 0

    async def meet(self, config: RingConfig, run: str | None) -> Met:
        if config.listen is not None:
            raise ConfigError(
                f"listen: {config.listen}: without a peers file each rank chooses its port and tells the others; "
                f"remove it, or name this machine's address with {HOST_VARIABLE}"
            )
        protected = config.load_protection().will_do_beyond_loopback
        if self.size == 1:
            return _alone(run or "")
        return await aside(lambda: self._meet(config.start_timeout_seconds, protected, run))

    def _meet(self, seconds: float, protected: bool, run: str | None) -> Met:
        from ringwide.experiment.node.torch_store import below, open_store

        if self._store is None:
            self._store = open_store(self._place, seconds)
        # Neither ranks that were started again nor a second ring may read the addresses of the first.
        store = below(self._store, f"ringwide/node/{self._place.attempt}/{self._rings}")
        self._rings += 1
        met = meet_at(store, self._place, protected=protected, seconds=seconds, run=run)
        return replace(met, store=self._store)


def meet_at(store: Store, place: AssignedRank, *, protected: bool, seconds: float, run: str | None) -> Met:
    board = StoreBoard(store, rank=place.rank, size=place.size or 1, timeout_seconds=seconds)
    if run is not None:
        board.write(_RUN, run)  # before the others can have found us
    found = find_peers(
        store,
        rank=place.rank,
        size=place.size or 1,
        host=os.environ.get(HOST_VARIABLE) or None,
        towards=place.master.host if place.master else None,
        protected=protected,
        timeout_seconds=seconds,
    )
    try:
        return Met(found.peers, found.listener, run or _name(board.line(_RUN, 0)))
    except BaseException:
        found.listener.close()
        raise


def _name(text: str) -> str:
    """It becomes a directory here, so it must be a plain name."""
    if not _NAME.fullmatch(text):
        raise JoinError(f"the store says that this run is called {text[:40]!r}, which cannot be the name of one")
    return text


def _alone(run: str) -> Met:
    listener = listen(Address(LOOPBACK, 0), rank=0, beyond_loopback=False)
    return Met([f"{LOOPBACK}:{listener.getsockname()[1]}"], listener, run)


async def aside(blocking: Callable[[], Result]) -> Result:
    """In a thread that nobody waits for: a signal ends the node although a store of torch goes on waiting."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Result] = loop.create_future()

    def tell(outcome: Callable[[], None]) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(lambda: None if done.done() else outcome())

    def run() -> None:
        try:
            result = blocking()
        except BaseException as error:
            tell(lambda error=error: done.set_exception(error))  # type: ignore[misc]
        else:
            tell(lambda: done.set_result(result))

    threading.Thread(target=run, name="ringwide-meeting", daemon=True).start()
    return await done
