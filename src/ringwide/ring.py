"""The ring as its users see it: `join` it, await its collectives, leave it."""

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from fcntl import ioctl
from hashlib import blake2b
from struct import unpack
from termios import TIOCOUTQ
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ringwide.buckets import (
    Arithmetic,
    Bundle,
    Group,
    Leaf,
    Shelf,
    Signature,
    arithmetic_of,
    carrier_of,
    groups_of,
    leaf_of,
    leaves_of,
)
from ringwide.collective.dispatch import WINDOW, Collective, Dispatcher
from ringwide.collective.operation import Numbers
from ringwide.collective.plan import BucketShape, Kind, Plan, Planner, Request
from ringwide.config import RingConfig
from ringwide.errors import JoinError, RingClosed, StartTimeout
from ringwide.membership.gathering import Gathering
from ringwide.membership.listening import listen
from ringwide.membership.peers import Address, check_rank, load_peers, parse_address
from ringwide.observe import statistics
from ringwide.transport.lane import Lane
from ringwide.transport.link import EXPRESS_BYTES, STAGING_BYTES, Link
from ringwide.transport.sockets import SocketSettings, tune

logger = logging.getLogger("ringwide")

_LEAVE_SECONDS, _LEAVE_STEP_SECONDS = 1.0, 0.002
_PEERS_IN_FULL_BYTES = 3000
"""A longer list of peers is compared by its digest."""

Tensors = TypeVar("Tensors")
_MUST_BE_EQUAL = ("segment_bytes", "lanes", "algorithm", "doubling_bytes", "half_precision")
_NOTHING = Numbers(np.empty(0, np.uint8), np.empty(0, np.uint8), np.add)
_NO_TENSORS = Signature((), (), ())
_RECIPES_REMEMBERED = 256
_CANCELLED = "its task was cancelled"


class _Call:
    """One call of a user, from the moment it is made."""

    __slots__ = ("collective", "numbers", "outcome", "plan")

    def __init__(self, plan: Plan, numbers: Sequence[Numbers], outcome: asyncio.Future[None]) -> None:
        self.plan, self.numbers, self.outcome = plan, numbers, outcome
        self.collective: Collective | None = None  # while it is open


class _Recipe(NamedTuple):
    """How a call with certain tensors is carried out."""

    plan: Plan
    groups: tuple[Group, ...]


@asynccontextmanager
async def join(
    *, rank: int, peers: str | os.PathLike[str] | Sequence[str], config: RingConfig | None = None
) -> AsyncIterator["Ring"]:
    """Meet the other ranks and be one of them for the length of the block.

    `peers` is a file with one `host:port` a line, line n for rank n, or a list of such strings. Raises `ConfigError`
    for what is wrong here, `JoinError` for what is wrong between ranks.
    """
    addresses = load_peers(peers)
    check_rank(rank, len(addresses), str(peers) if isinstance(peers, str | os.PathLike) else "the list of peers")
    ring = Ring(rank, addresses, config or RingConfig())
    try:
        await ring._form()
        yield ring
    except JoinError as error:
        await ring._leave(f"it could not join: {error}")
        raise
    except BaseException as error:
        await ring._leave(f"it ended with {type(error).__name__}")
        raise
    else:
        await ring._leave("it is done")


class Ring:
    """One rank's place in the ring. Made by `join`."""

    def __init__(self, rank: int, addresses: Sequence[Address], config: RingConfig) -> None:
        self.rank, self.size, self.config = rank, len(addresses), config
        self._addresses = addresses
        self._links = {peer: Link(peer) for peer in range(self.size) if peer != rank}
        self._dispatcher = Dispatcher(
            rank=rank,
            links=self._links,
            clock=asyncio.get_running_loop(),
            timeout_seconds=config.collective_timeout_seconds,
        )
        self._planner = Planner(
            rank=rank,
            size=self.size,
            segment_bytes=config.segment_bytes,
            algorithm=config.algorithm,
            doubling_bytes=config.doubling_bytes,
        )
        self._sockets = SocketSettings(config.buffer_bytes, config.keepalive_seconds, config.user_timeout_seconds)
        self._loop = asyncio.get_running_loop()
        self._shelf = Shelf()
        self._recipes: dict[tuple[Kind, str, int, Signature], _Recipe] = {}
        self._calls: deque[_Call] = deque()  # those whose turn has not come
        self._running = 0
        self._server: asyncio.Task[None] | None = None
        self._listener: socket.socket | None = None
        self._left = False
        self._collectives = 0
        self._awaited = 0
        self._busy_since = self._network_seconds = 0.0

    def __repr__(self) -> str:
        state = "left" if self._left else str(self._dispatcher.over or "joined")
        return f"<Ring rank {self.rank} of {self.size}: {state}>"

    # -- collectives

    async def allreduce(self, tensors: Tensors, op: str = "mean") -> Tensors:
        """Replace every tensor by its mean (sum, min, max, prod) over all ranks, in place. The same bits everywhere."""
        leaves, signature = leaves_of(tensors)
        recipe = self._recipe(Kind.ALLREDUCE, signature, op=op)
        _require_writable(leaves)
        bundle = Bundle(leaves, recipe.groups, self._shelf)
        await self._run(recipe.plan, bundle)
        bundle.commit()
        return tensors

    async def reduce_scatter(self, tensor: Any, op: str = "mean") -> Any:
        """This rank's share of the flat tensor, reduced over all ranks. The tensor itself is not changed."""
        leaf = leaf_of(tensor)
        recipe = self._recipe(Kind.REDUCE_SCATTER, leaves_of(tensor)[1], op=op)
        bundle = Bundle([leaf], recipe.groups, self._shelf)
        await self._run(recipe.plan, bundle)
        count = recipe.groups[0].count
        share = slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)
        part = leaf.like(bundle.numbers[0].work[share].copy(), (share.stop - share.start,))
        bundle.give_back()
        return part

    async def all_gather(self, tensor: Any) -> list[Any]:
        """Every rank's tensor, by rank. All must have the same shape and dtype."""
        leaf = leaf_of(tensor)
        recipe = self._recipe(Kind.ALL_GATHER, leaves_of(tensor)[1])
        gathered = np.empty((self.size, recipe.groups[0].count), carrier_of(leaf.dtype))
        leaf.load(gathered[self.rank])
        flat = gathered.reshape(-1)
        await self._run(recipe.plan, numbers=[Numbers(flat, flat, np.add)])
        return [leaf.like(gathered[rank], leaf.shape) for rank in range(self.size)]

    async def broadcast(self, tensors: Tensors, root: int = 0) -> Tensors:
        """Replace every tensor by the root's, in place."""
        if not 0 <= root < self.size:
            raise ValueError(f"root {root} is not a rank of this ring: ranks go from 0 to {self.size - 1}")
        leaves, signature = leaves_of(tensors)
        recipe = self._recipe(Kind.BROADCAST, signature, root=root)
        if self.rank != root:
            _require_writable(leaves)
        bundle = Bundle(leaves, recipe.groups, self._shelf)
        await self._run(recipe.plan, bundle, numbers=[*bundle.numbers, _NOTHING])
        if self.rank == root:
            bundle.give_back()
        else:
            bundle.commit()
        return tensors

    async def barrier(self) -> None:
        """Return when every rank has called this."""
        await self._run(self._recipe(Kind.BARRIER, _NO_TENSORS).plan, numbers=[_NOTHING])

    def algorithm_for(self, nbytes: int) -> str:
        """Which algorithm carries an all-reduce of this size."""
        return self._planner.algorithm_for(nbytes)

    def statistics(self) -> statistics.Statistics:
        """What this ring has done so far."""
        running = time.perf_counter() - self._busy_since if self._awaited else 0.0
        return statistics.Statistics(
            collectives=self._collectives,
            network_seconds=self._network_seconds + running,
            buffer_bytes_asked=self.config.buffer_bytes,
            links=statistics.of_links(self._links.values()),
        )

    def _recipe(self, kind: Kind, signature: Signature, *, op: str = "", root: int = 0) -> "_Recipe":
        """How to do this. Remembered, because a training loop asks for the same few things again and again."""
        key = (kind, op, root, signature)
        recipe = self._recipes.get(key)
        if recipe is None:
            if len(self._recipes) >= _RECIPES_REMEMBERED:
                self._recipes.clear()
            recipe = self._recipes[key] = self._make_recipe(kind, signature, op, root)
        return recipe

    def _make_recipe(self, kind: Kind, signature: Signature, op: str, root: int) -> "_Recipe":
        def arithmetic_for(dtype: str) -> Arithmetic:
            if kind in (Kind.ALLREDUCE, Kind.REDUCE_SCATTER):
                return arithmetic_of(dtype, op, self.size, half_precision=self.config.half_precision)
            return Arithmetic(carrier_of(dtype), np.add, None)

        groups = groups_of(signature, arithmetic_for)
        shapes = [group.shape for group in groups]
        if kind is Kind.ALL_GATHER:
            shapes = [BucketShape(shape.dtype, shape.count * self.size, shape.itemsize) for shape in shapes]
        detail = ", ".join(filter(None, [op, f"root {root}" if kind is Kind.BROADCAST else "", str(signature)]))
        return _Recipe(self._planner.plan(Request(kind, detail, tuple(shapes), root)), groups)

    async def _run(self, plan: Plan, bundle: Bundle | None = None, *, numbers: Sequence[Numbers] | None = None) -> None:
        """Carry out a plan; after an error, whatever came back, the bundle's memory is not used again."""
        if self._left:
            raise RingClosed("this ring has been left; use it inside its `async with ringwide.join(...)` block")
        if not self._awaited:
            self._busy_since = time.perf_counter()
        self._awaited += 1
        try:
            await self._outcome(plan, numbers if numbers is not None else bundle.numbers if bundle else ())
        except BaseException:
            if bundle is not None:
                bundle.discard()
            raise
        finally:
            self._awaited -= 1
            if not self._awaited:
                self._network_seconds += time.perf_counter() - self._busy_since

    async def _outcome(self, plan: Plan, numbers: Sequence[Numbers]) -> None:
        """Calls get their numbers in the order in which they were made, whatever becomes of them meanwhile."""
        call = _Call(plan, numbers, self._loop.create_future())
        self._calls.append(call)
        self._start_calls()
        try:
            await call.outcome
        except asyncio.CancelledError:
            if call.collective is not None:
                self._dispatcher.abort(call.collective, _CANCELLED)
                self._end_call(call)
            raise

    def _start_calls(self) -> None:
        while self._calls and self._running < WINDOW:
            call = self._calls.popleft()
            if call.outcome.cancelled():
                self._dispatcher.skip(_CANCELLED)
            else:
                self._start_call(call)

    def _start_call(self, call: _Call) -> None:
        def on_done(error: Exception | None) -> None:
            self._end_call(call)
            if call.outcome.done():
                return
            if error is None:
                call.outcome.set_result(None)
            else:
                call.outcome.set_exception(error)

        self._running += 1
        self._collectives += 1
        try:
            collective = self._dispatcher.submit(call.plan, call.numbers, on_done)
        except Exception as error:  # this call's, though another one's end may have started it
            on_done(error)
        else:
            call.collective = None if call.outcome.done() else collective

    def _end_call(self, call: _Call) -> None:
        call.collective = None
        self._running -= 1
        if self._calls:
            self._loop.call_soon(self._start_calls)

    # -- joining and leaving

    async def _form(self) -> None:
        started = time.perf_counter()
        gathering = Gathering(
            rank=self.rank,
            addresses=self._addresses,
            lanes={peer: 1 + self._bulk_lanes(peer) for peer in self._links},
            settings={key: getattr(self.config, key) for key in _MUST_BE_EQUAL},
            peers_digest=self._peers_in_common(),
            on_socket=self._on_socket,
        )
        self._dispatcher.on_over = gathering.fail
        self._listener = listen(self._listen_address(), rank=self.rank, insecure=self.config.insecure)
        self._server = asyncio.create_task(gathering.serve(self._listener))
        timeout = self.config.start_timeout_seconds
        await gathering.run(timeout_seconds=timeout)
        self._dispatcher.on_over = None
        try:
            async with asyncio.timeout(timeout - (time.perf_counter() - started)):
                await self.barrier()
        except TimeoutError as error:
            raise StartTimeout(rank=self.rank, missing=["ranks that wait for others"], seconds=timeout) from error

    def _bulk_lanes(self, peer: int) -> int:
        return self.config.lanes if self._planner.exchanges_bulk(peer) else 0

    def _peers_in_common(self) -> str:
        text = "\n".join(map(str, self._addresses))
        return text if len(text) <= _PEERS_IN_FULL_BYTES else blake2b(text.encode(), digest_size=16).hexdigest()

    def _listen_address(self) -> Address:
        if self.config.listen is None:
            return self._addresses[self.rank]
        return parse_address(self.config.listen, "listen")

    def _on_socket(self, peer: int, index: int, sock: socket.socket) -> None:
        tune(sock, self._sockets)
        self._links[peer].add(
            Lane(
                sock,
                peer=peer,
                index=index,
                events=self._dispatcher,
                limit_bytes=self.config.segment_bytes if index else EXPRESS_BYTES,
                **({} if index else {"staging_bytes": STAGING_BYTES}),
            )
        )

    async def _leave(self, reason: str) -> None:
        """Say goodbye, let the last bytes get there, close everything."""
        self._left = True
        if self._server is not None:
            self._server.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._server
        if self._listener is not None:
            self._listener.close()
        self._dispatcher.say_goodbye(reason)
        self._dispatcher.close(RingClosed("this ring has been left while a call was still open; await every call"))
        lanes = [lane for link in self._links.values() for lane in link.lanes.values()]
        for _ in range(int(_LEAVE_SECONDS / _LEAVE_STEP_SECONDS)):
            if not any(lane.queued or _unacknowledged(lane) for lane in lanes):
                break
            await asyncio.sleep(_LEAVE_STEP_SECONDS)  # the kernel has no event for "acknowledged"
        for lane in lanes:
            lane.close()


def _unacknowledged(lane: Lane) -> int:
    """Bytes that the peer's kernel has not confirmed. They would be lost if this process ended now."""
    if lane.closed:
        return 0
    return int(unpack("i", ioctl(lane.socket.fileno(), TIOCOUTQ, b"\0\0\0\0"))[0])


def _require_writable(leaves: Sequence[Leaf]) -> None:
    for index, leaf in enumerate(leaves):
        leaf.require_writable(f"tensor {index}")


__all__ = ["Ring", "join"]
