"""How a node finds the others: they are listed in a file, or they meet at a store."""

import asyncio
import ipaddress
import os
import re
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Protocol, TypeVar

from ringwide.bootstrap.launcher_env import AssignedRank
from ringwide.bootstrap.listen import is_loopback, listen, unresolvable
from ringwide.bootstrap.peers import Address, load_peers
from ringwide.bootstrap.rendezvous import LOOPBACK, Store, StoreBoard, find_peers
from ringwide.config.ring_config import RingConfig
from ringwide.errors import ConfigError, JoinError, StartTimeout

_PAUSE_SECONDS, _CONNECT_SECONDS = 0.1, 5.0
_LOG_LEVEL = "TORCH_CPP_LOG_LEVEL"


def open_store(place: AssignedRank, seconds: float) -> Store:
    """That of torchrun, or one that rank 0 opens."""
    master, deadline = place.master, time.monotonic() + seconds
    if master is None:
        raise JoinError(f"rank {place.rank} does not know where to meet the others")
    opens = place.rank == 0 and not place.hosted
    if not opens:
        _wait_until_open(place.rank, master, deadline, seconds)
    os.environ.setdefault(_LOG_LEVEL, "FATAL")  # what goes wrong is told once, in a sentence of ours
    import torch.distributed as dist

    listener = _private(master) if opens else None
    try:
        store: Store = dist.TCPStore(
            master.host,
            master.port,
            is_master=opens,
            timeout=timedelta(seconds=max(1.0, deadline - time.monotonic())),
            wait_for_workers=False,
            master_listen_fd=None if listener is None else listener.detach(),
        )
        return store
    except Exception as error:
        reason = str(error).partition("\n")[0]
        does = "open" if opens else "use"
        raise JoinError(f"rank {place.rank} cannot {does} the store at {master}, where ranks meet: {reason}") from error


def below(store: Store, prefix: str) -> Store:
    import torch.distributed as dist

    found: Store = dist.PrefixStore(prefix, store)  # type: ignore[arg-type]
    return found


def _private(master: Address) -> socket.socket | None:
    """Torch would listen everywhere. Where ranks meet on loopback, nobody else need reach the store."""
    if master.host == "localhost" or _is_loopback_address(master.host):
        listener = listen(master, rank=0, beyond_loopback=False)
        listener.setblocking(True)
        return listener
    return None


def _is_loopback_address(host: str) -> bool:
    try:
        return is_loopback(str(ipaddress.ip_address(host)))
    except ValueError:
        return False


def _wait_until_open(rank: int, master: Address, deadline: float, seconds: float) -> None:
    """Torch waits as well, but it is deaf to signals then, and does not say what for."""
    while True:
        try:
            socket.create_connection((master.host, master.port), timeout=_CONNECT_SECONDS).close()
            return
        except (socket.gaierror, UnicodeError) as error:
            raise unresolvable(master, error) from error
        except OSError as error:
            if time.monotonic() >= deadline:
                missing = [f"rank 0 (to open the store at {master}; {error.strerror or error})"]
                raise StartTimeout(rank=rank, missing=missing, seconds=seconds) from error
        time.sleep(_PAUSE_SECONDS)


Result = TypeVar("Result")
HOST_VARIABLE = "RINGWIDE_HOST"
_RUN = "run"
_NAME = re.compile(r"\w[\w.,= -]{0,300}")


@dataclass(frozen=True, slots=True)
class FoundPeers:
    """What `join` needs to know, and the name of the run if rank 0 has told it."""

    peers: str | list[str]
    listener: socket.socket | None = None
    run: str = ""
    store: object = None  # held by whoever joins: on rank 0 it would end, while others still read in it


class PeerFinder(Protocol):
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

    async def meet(self, config: RingConfig, run: str | None) -> FoundPeers:
        """Called once for each ring. `run` is how rank 0 has named it; the others learn that."""
        ...


def others_of(place: AssignedRank, listener: socket.socket | None = None) -> PeerFinder:
    """`listener` is where this node listens already, on its address in the list; for one ring."""
    return PeersAtStore(place) if place.peers is None else ListedPeers(place.peers, place, listener)


class ListedPeers:
    """Everybody's address stands in a file."""

    together = False

    def __init__(self, peers: str, place: AssignedRank | None = None, listener: socket.socket | None = None) -> None:
        self._peers, self._listener, self.size = peers, listener, len(load_peers(peers))
        self.counted_in = f"{peers} names {self.size} peers"
        if place is not None and place.size not in (None, self.size):
            raise ConfigError(f"{place.names[-1]} is {place.size}, but {self.counted_in}; make them equal")

    async def meet(self, config: RingConfig, run: str | None) -> FoundPeers:
        return FoundPeers(self._peers, self._listener, run or "")


class PeersAtStore:
    """Everybody tells a store where it listens."""

    together = True

    def __init__(self, place: AssignedRank) -> None:
        self._place, self.size = place, place.size or 1
        self.counted_in = f"{place.names[-1]} is {self.size}"
        self._store: Any = None
        self._rings = 0

    async def meet(self, config: RingConfig, run: str | None) -> FoundPeers:
        if config.listen is not None:
            raise ConfigError(
                f"listen: {config.listen}: without a peers file each rank chooses its port and tells the others; "
                f"remove it, or name this machine's address with {HOST_VARIABLE}"
            )
        protected = config.load_protection().will_do_beyond_loopback
        if self.size == 1:
            return _alone(run or "")
        return await aside(lambda: self._meet(config.start_timeout_seconds, protected, run))

    def _meet(self, seconds: float, protected: bool, run: str | None) -> FoundPeers:

        if self._store is None:
            self._store = open_store(self._place, seconds)
        # Neither ranks that were started again nor a second ring may read the addresses of the first.
        store = below(self._store, f"ringwide/node/{self._place.attempt}/{self._rings}")
        self._rings += 1
        met = meet_at(store, self._place, protected=protected, seconds=seconds, run=run)
        return replace(met, store=self._store)


def meet_at(store: Store, place: AssignedRank, *, protected: bool, seconds: float, run: str | None) -> FoundPeers:
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
        return FoundPeers(found.peers, found.listener, run or _name(board.line(_RUN, 0)))
    except BaseException:
        found.listener.close()
        raise


def _name(text: str) -> str:
    """It becomes a directory here, so it must be a plain name."""
    if not _NAME.fullmatch(text):
        raise JoinError(f"the store says that this run is called {text[:40]!r}, which cannot be the name of one")
    return text


def _alone(run: str) -> FoundPeers:
    listener = listen(Address(LOOPBACK, 0), rank=0, beyond_loopback=False)
    return FoundPeers([f"{LOOPBACK}:{listener.getsockname()[1]}"], listener, run)


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
