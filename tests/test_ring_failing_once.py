"""Each connect, accept, read, write and allocation fails once, in turn.

The operations of one clean life of a ring (two ranks join, reduce, gather, leave) are counted; then that life is
repeated once for each of them, and it fails. What is promised each time: each rank ends, soon; each of its calls gives
the exact numbers, or a typed error and the tensors as they were; and no task, thread, connection or buffer is left.

Some failures are not even noticed: who cannot connect tries again. The one error that is not of the package's own kind
is `MemoryError`, for memory that a call needs: it comes as it is to the rank that has none, the others hear of it as
`CollectiveAborted`, and the ring works on.
"""

import asyncio
import contextlib
import gc
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import ringwide
from local_ring import free_peers
from ringwide import Ring
from ringwide.bootstrap import accept
from ringwide.collectives import peer_loss
from ringwide.collectives.bucket_operation import Operation
from ringwide.collectives.deadlines import TICK_SECONDS
from ringwide.collectives.running_collective import Collective
from ringwide.collectives.single_segment import SingleSegmentOperation
from ringwide.transport.lane import Lane

pytestmark = pytest.mark.timeout(600)  # much is computed

SOCKET_CALLS: dict[str, Callable[[], Exception]] = {
    "connect": lambda: ConnectionRefusedError("made to fail"),
    "accept": lambda: OSError(24, "made to fail: too many open files"),
    "recv": lambda: ConnectionResetError("made to fail"),
    "recv_into": lambda: ConnectionResetError("made to fail"),
    "recvmsg_into": lambda: ConnectionResetError("made to fail"),
    "send": lambda: BrokenPipeError("made to fail"),
    "sendmsg": lambda: BrokenPipeError("made to fail"),
}
UNTRUE = (ringwide.CollectiveMismatch, ringwide.CollectiveTimeout)
"""Nobody calls anything else here, and nobody is slow: whoever waits for a rank that has failed must hear of it."""
LIFE_SECONDS = 60.0
"""Longer than any life may last, whatever has failed: a hang."""


@dataclass
class Faults:
    """Counts the operations, and lets one of them fail."""

    chosen: int = -1
    names: list[str] = field(default_factory=list)

    def pass_one(self, name: str, error: Callable[[], BaseException]) -> None:
        self.names.append(name)
        if len(self.names) - 1 == self.chosen:
            raise error()


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Faults:
    faults = Faults()
    for name, error in SOCKET_CALLS.items():
        monkeypatch.setattr(socket.socket, name, _failing_call(faults, name, error), raising=False)
    for name, module in list(sys.modules.items()):
        if name.startswith(
            ("ringwide.bootstrap", "ringwide.health", "ringwide.transport", "ringwide.protocol", "ringwide.collectives")
        ):
            monkeypatch.setattr(module, "bytearray", _failing_bytearray(faults, name), raising=False)
    monkeypatch.setattr(np, "empty", _failing_empty(faults, np.empty))
    return faults


def _failing_call(faults: Faults, name: str, error: Callable[[], Exception]) -> Callable[..., Any]:
    original = getattr(socket.socket, name)

    def call(sock: socket.socket, *arguments: Any) -> Any:
        if _is_of_a_ring(sock, *arguments):
            faults.pass_one(name, error)
        return original(sock, *arguments)

    return call


def _is_of_a_ring(sock: socket.socket, *arguments: Any) -> bool:
    """And not the event loop's own, which are Unix-domain sockets without a name."""
    if sock.family != socket.AF_UNIX:
        return True
    names: list[object] = [sock.getsockname(), *arguments[:1]]
    with contextlib.suppress(OSError):  # it has no peer yet
        names.append(sock.getpeername())
    return any(map(_is_abstract, names))


def _is_abstract(name: object) -> bool:
    return isinstance(name, bytes | str) and name[:1] in (b"\0", "\0")


def _failing_bytearray(faults: Faults, where: str) -> Callable[..., bytearray]:
    def allocate(*arguments: Any) -> bytearray:
        faults.pass_one(f"bytearray of {where}", lambda: MemoryError("made to fail"))
        return bytearray(*arguments)

    return allocate


def _failing_empty(faults: Faults, original: Callable[..., Any]) -> Callable[..., Any]:
    def allocate(*arguments: Any, **options: Any) -> Any:
        where = sys._getframe(1).f_globals["__name__"]
        if where.startswith("ringwide."):
            faults.pass_one(f"np.empty of {where}", lambda: MemoryError("made to fail"))
        return original(*arguments, **options)

    return allocate


# -- one life


def brought(rank: int) -> dict[str, Any]:
    """What needs each kind of memory: a bucket that lies flat, one that is packed, and bulk in several segments."""
    return {
        "a": np.arange(5, dtype=np.int64) + rank,
        "b": np.arange(20_000, dtype=np.float32) % 7 + rank,
        "c": np.arange(40_000, dtype=np.float32)[::2] % 5 + rank,
    }


def same(ours: dict[str, Any], theirs: dict[str, Any]) -> bool:
    return all(np.array_equal(ours[name], theirs[name]) for name in theirs)


async def reduce_exactly(ring: Ring, size: int) -> None:
    mine = brought(ring.rank)
    try:
        await ring.allreduce(mine, op="sum")
    except (ringwide.RingwideError, MemoryError):
        assert same(mine, brought(ring.rank))
        raise
    parts = [brought(rank) for rank in range(size)]
    assert same(mine, {name: sum(part[name] for part in parts) for name in mine})


async def gather_exactly(ring: Ring, size: int) -> None:
    gathered = await ring.all_gather(np.full(3, ring.rank))
    assert [part.tolist() for part in gathered] == [[rank] * 3 for rank in range(size)]


async def one_rank(rank: int, peers: list[str], config: ringwide.RingConfig, errors: list[BaseException]) -> None:
    """Goes on after an error for as long as the ring works."""
    try:
        async with ringwide.join(rank=rank, peers=peers, config=config) as ring:
            for act in (reduce_exactly, gather_exactly, reduce_exactly):
                try:
                    await act(ring, len(peers))
                except (ringwide.CollectiveError, MemoryError) as error:
                    errors.append(error)
            await ring.barrier()
    except (ringwide.RingwideError, MemoryError) as error:
        errors.append(error)


async def one_life(same_host: str, size: int = 2, *, start_seconds: float = 10.0) -> list[BaseException]:
    """Every error of every rank. Whatever else happens is raised."""
    config = ringwide.RingConfig(
        same_host=same_host,
        segment_bytes="64KiB",
        buffer_bytes="256KiB",
        tree_bytes=1024,
        start_timeout_seconds=start_seconds,
        collective_timeout_seconds=30,
        suspect_after_seconds=2 * LIFE_SECONDS,
    )
    peers, errors = free_peers(size), list[BaseException]()
    async with asyncio.timeout(LIFE_SECONDS):
        await asyncio.gather(*[one_rank(rank, peers, config, errors) for rank in range(size)])
    return errors


def descriptors() -> set[str]:
    """What each of this process's descriptors is, such as socket:[81723]."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the one that the directory was read with
            found.add(os.readlink(f"/proc/self/fd/{name}"))
    return found


def objects_left() -> list[str]:
    """Lanes and collectives that somebody still refers to. What was there before is frozen, and not listed."""
    gc.collect()
    return [
        repr(thing)
        for thing in gc.get_objects()
        if isinstance(thing, Lane | Operation | SingleSegmentOperation | Collective)
    ]


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is waited for in case it passes, or that a goodbye is still read, is not what is tried here.

    Nor what is logged: pytest keeps it, with tracebacks, and in those all that must not be left.
    """
    monkeypatch.setattr(accept, "_RETRY_SECONDS", 0.02)
    monkeypatch.setattr(peer_loss, "GOODBYE_GRACE_SECONDS", 0.02)
    logging.disable()  # this way: loggers remember whether they are enabled, and some may have been asked before
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.usefixtures("quickly")
@pytest.mark.parametrize("same_host", ["tcp", "auto"])
async def test_every_operation_fails_once(faults: Faults, same_host: str) -> None:
    await one_life(same_host)  # for what is made once, such as the threads that look up names
    gc.collect()
    gc.freeze()
    try:
        faults.names = []
        assert await one_life(same_host) == []
        operations, open_before, unnoticed = len(faults.names), descriptors(), set()
        for chosen in range(operations):
            faults.names, faults.chosen = [], chosen
            errors = await one_life(same_host, start_seconds=0.5)
            faults.chosen = -1
            what = "".join(faults.names[chosen : chosen + 1])  # none, if this life had fewer
            untrue = [error for error in errors if isinstance(error, UNTRUE)]
            assert not untrue, what
            if not errors:
                unnoticed.add(what)
            errors.clear()
            assert descriptors() <= open_before, what
            assert asyncio.all_tasks() == {asyncio.current_task()}, what
            assert not [thread for thread in threading.enumerate() if thread.name.startswith("ringwide-heartbeats")], (
                what
            )
        await asyncio.sleep(2 * TICK_SECONDS)  # deadlines that are still set refer to their ring
        assert objects_left() == []
        assert {"connect", "accept"} <= unnoticed
    finally:
        gc.unfreeze()
