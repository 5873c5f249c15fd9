"""Search for the peers of a node: their addresses are listed in a file, or exchanged at a store of torch."""

import asyncio
import ipaddress
import os
import random
import re
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol, TypeVar

from ringwide.bootstrap.launcher_env import AssignedRank
from ringwide.bootstrap.listen import is_loopback, listen, unresolvable
from ringwide.bootstrap.peers import Address, load_peers
from ringwide.bootstrap.rendezvous import LOOPBACK, Store, StoreBoard, find_peers
from ringwide.config.ring_config import RingConfig
from ringwide.errors import ConfigError, JoinError, StartTimeout, require_torch

Result = TypeVar("Result")
HOST_VARIABLE = "RINGWIDE_HOST"
_RUN = "run"
_NAME = re.compile(r"\w[\w.,= -]{0,300}")
_PAUSE_SECONDS, _CONNECT_SECONDS = 0.1, 5.0
_LOG_LEVEL = "TORCH_CPP_LOG_LEVEL"


@dataclass(frozen=True, slots=True)
class FoundPeers:
    """Addresses and listener for `join`, and the name of the run if rank 0 has announced it."""

    peers: str | list[str]
    listener: socket.socket | None = None
    run: str = ""
    store: object = None  # kept alive by the caller: rank 0 serves it, and peers may still read


class PeerFinder(Protocol):
    """Source of the peers' addresses, before there is a ring."""

    @property
    def size(self) -> int: ...

    @property
    def counted_in(self) -> str:
        """Origin of `size`, for error texts: "peers.txt names 4 peers"."""
        ...

    @property
    def together(self) -> bool:
        """Whether one command started all nodes. Then rank 0 reports for all, and they share its run directory."""
        ...

    async def find(self, config: RingConfig, run: str | None) -> FoundPeers:
        """Find the peers of one ring. Rank 0 passes the name of the `run`; the other ranks get it from there."""
        ...


def peer_finder_for(assigned: AssignedRank, listener: socket.socket | None = None) -> PeerFinder:
    """`listener` already listens on this node's address in the list. It serves one ring."""
    return PeersAtStore(assigned) if assigned.peers is None else ListedPeers(assigned.peers, assigned, listener)


class ListedPeers:
    """Peers listed in a file."""

    together = False

    def __init__(self, peers: str, assigned: AssignedRank | None = None, listener: socket.socket | None = None) -> None:
        self._peers, self._listener, self.size = peers, listener, len(load_peers(peers))
        self.counted_in = f"{peers} names {self.size} peers"
        if assigned is not None and assigned.size not in (None, self.size):
            raise ConfigError(f"{assigned.names[-1]} is {assigned.size}, but {self.counted_in}; make them equal")

    async def find(self, config: RingConfig, run: str | None) -> FoundPeers:
        return FoundPeers(self._peers, self._listener, run or "")


class PeersAtStore:
    """Peers that publish their addresses in a store."""

    together = True

    def __init__(self, assigned: AssignedRank) -> None:
        self._assigned, self.size = assigned, assigned.size or 1
        self.counted_in = f"{assigned.names[-1]} is {self.size}"
        self._store: Any = None
        self._rings = 0

    async def find(self, config: RingConfig, run: str | None) -> FoundPeers:
        if config.listen is not None:
            raise ConfigError(
                f"listen: {config.listen}: without a peers file each rank chooses its port and tells the others; "
                f"remove it, or name this machine's address with {HOST_VARIABLE}"
            )
        protected = config.load_protection().will_do_beyond_loopback
        if self.size == 1:
            return _alone(run or "")
        return await in_daemon_thread(lambda: self._find(config.start_timeout_seconds, protected, run))

    def _find(self, seconds: float, protected: bool, run: str | None) -> FoundPeers:
        if self._store is None:
            self._store = open_store(self._assigned, seconds)
        # Restarted ranks and later rings must not read the addresses of an earlier ring.
        store = below(self._store, f"ringwide/node/{self._assigned.attempt}/{self._rings}")
        self._rings += 1
        found = find_at_store(store, self._assigned, protected=protected, seconds=seconds, run=run)
        return replace(found, store=self._store)


def find_at_store(
    store: Store, assigned: AssignedRank, *, protected: bool, seconds: float, run: str | None
) -> FoundPeers:
    board = StoreBoard(store, rank=assigned.rank, size=assigned.size or 1, timeout_seconds=seconds)
    if run is not None:
        board.write(_RUN, run)  # before peers can find us
    found = find_peers(
        store,
        rank=assigned.rank,
        size=assigned.size or 1,
        host=os.environ.get(HOST_VARIABLE) or None,
        towards=assigned.master.host if assigned.master else None,
        protected=protected,
        timeout_seconds=seconds,
    )
    try:
        return FoundPeers(found.peers, found.listener, run or _name(board.line(_RUN, 0)))
    except BaseException:
        found.listener.close()
        raise


def _name(text: str) -> str:
    """Checked name of a run: it becomes a directory here, so it must be plain."""
    if not _NAME.fullmatch(text):
        raise JoinError(f"the store says that this run is called {text[:40]!r}, which cannot be the name of one")
    return text


def _alone(run: str) -> FoundPeers:
    listener = listen(Address(LOOPBACK, 0), rank=0, beyond_loopback=False)
    return FoundPeers([f"{LOOPBACK}:{listener.getsockname()[1]}"], listener, run)


def open_store(assigned: AssignedRank, seconds: float) -> Store:
    """Store of torchrun, or one that rank 0 opens."""
    master, deadline = assigned.master, time.monotonic() + seconds
    if master is None:
        raise JoinError(f"rank {assigned.rank} does not know where the ranks meet")
    require_torch("a ring without a peers file")
    opens = assigned.rank == 0 and not assigned.hosted
    if not opens:
        _wait_until_open(assigned.rank, master, deadline, seconds)
    os.environ.setdefault(_LOG_LEVEL, "FATAL")  # our JoinError tells it in one sentence
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
        raise JoinError(
            f"rank {assigned.rank} cannot {does} the store at {master}, where ranks meet: {reason}"
        ) from error


def below(store: Store, prefix: str) -> Store:
    import torch.distributed as dist

    found: Store = dist.PrefixStore(prefix, store)  # type: ignore[arg-type]
    return found


def _private(master: Address) -> socket.socket | None:
    """Listener on loopback if the ranks meet there. Torch would listen on all addresses."""
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
    """Wait for the port. Torch waits too, but ignores signals meanwhile and does not say what it waits for."""
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


async def in_daemon_thread(blocking: Callable[[], Result]) -> Result:
    """Result of `blocking`, run in a daemon thread: a signal can end the node while torch still waits in its store."""
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

    threading.Thread(target=run, name="ringwide-find-peers", daemon=True).start()
    return await done


# -- addresses for nodes that are all on this machine

FIRST_PORT = 10_000
TRIES_PER_PORT = 100


def write_peers(path: Path, ports: list[int]) -> None:
    path.write_text("".join(f"{LOOPBACK}:{port}\n" for port in ports), encoding="utf-8")


def free_ports(count: int, rng: random.Random, among: range | None = None) -> list[int]:
    """Ports on which nobody listens now, drawn from `among`.

    By default they lie below the kernel's range for outgoing connections. Otherwise a node that dials early could be
    given the port on which a later node is about to listen.
    """
    candidates = among or range(FIRST_PORT, max(_first_outgoing_port(), FIRST_PORT + 1000))
    found: set[int] = set()
    for _ in range(TRIES_PER_PORT * count):
        port = rng.choice(candidates)
        if port not in found and _is_free(port):
            found.add(port)
        if len(found) == count:
            return sorted(found)
    raise ConfigError(f"nodes: {count}: found only {len(found)} free ports on {LOOPBACK}; use fewer nodes")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # The nodes set it too, so a port in TIME_WAIT counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def _first_outgoing_port() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 32_768
