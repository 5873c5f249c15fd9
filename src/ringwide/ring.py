"""The ring as its users see it: `join` it, await its collectives, leave it."""

import asyncio
import logging
import os
import socket
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, contextmanager, nullcontext
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
    array_of,
    carrier_of,
    groups_of,
    leaf_of,
    leaves_of,
    portable,
)
from ringwide.calls import Calls, Refusal
from ringwide.codec import registry
from ringwide.codec.codec import Array
from ringwide.collected import Collected, require_room
from ringwide.collective.coder import Coder
from ringwide.collective.dispatch import Dispatcher
from ringwide.collective.feedback import Label
from ringwide.collective.numbers import Numbers
from ringwide.collective.plan import REDUCING, BucketShape, Kind, Plan, Planner, Request
from ringwide.collective.workshop import Workshop
from ringwide.config import RingConfig
from ringwide.connections import Connections
from ringwide.correspondence import Correspondence, correspondence
from ringwide.errors import ConfigError, JoinError, RingClosed, StartTimeout
from ringwide.farewell import Farewell, farewell
from ringwide.membership.liveness import Liveness
from ringwide.membership.peers import Address, check_rank, load_peers, parse_address
from ringwide.nonfinite import Inspector
from ringwide.observe import statistics
from ringwide.transport.sockets import SocketSettings

logger = logging.getLogger("ringwide.ring")
Tensors = TypeVar("Tensors")
_MUST_BE_EQUAL = (
    *("segment_bytes", "lanes", "messages", "algorithm", "doubling_bytes", "half_precision"),
    *("codec", "allow_lossy", "threshold_bytes"),
)
_LEFT = "this ring has been left; use it inside its `async with ringwide.join(...)` block"
_NOTHING = Numbers(np.empty(0, np.uint8), None, np.add)
_NO_TENSORS = Signature((), (), ())
_RECIPES_REMEMBERED = 256
_CORES_LIMIT = 1024
_MOST_THREADS = 4
"""More cannot be kept busy by one link."""


class _Recipe(NamedTuple):
    """How a call with certain tensors is carried out."""

    plan: Plan
    groups: tuple[Group, ...]


@asynccontextmanager
async def join(
    *,
    rank: int,
    peers: str | os.PathLike[str] | Sequence[str],
    config: RingConfig | None = None,
    listener: socket.socket | None = None,
) -> AsyncIterator["Ring"]:
    """Meet the other ranks and be one of them for the length of the block.

    `peers` is a file with one `host:port` a line, line n for rank n, or a list of such strings. `listener` is a socket
    that listens already, for a port that was chosen by the kernel; the ring closes it, however the block ends. Raises
    `ConfigError` for what is wrong here, `JoinError` for what is wrong between ranks.
    """
    with closing(listener) if listener is not None else nullcontext(), farewell() as told:
        addresses = load_peers(peers)
        check_rank(rank, len(addresses), str(peers) if isinstance(peers, str | os.PathLike) else "the list of peers")
        ring = _made(rank, addresses, config or RingConfig(), told)
        try:
            await ring._form(listener)
            yield ring
        except JoinError as error:
            await ring._leave(f"it could not join: {error}")
            raise
        except BaseException as error:
            await ring._leave(told.reason(error))
            raise
        else:
            await ring._leave("it is done")


def _made(rank: int, addresses: Sequence[Address], config: RingConfig, told: Farewell) -> "Ring":
    try:
        return Ring(rank, addresses, config, told)
    except OSError as error:  # out of descriptors, for example
        raise JoinError(f"rank {rank} cannot start: {error}") from error


class Ring:
    """One rank's place in the ring. Made by `join`."""

    def __init__(self, rank: int, addresses: Sequence[Address], config: RingConfig, told: Farewell) -> None:
        self.rank, self.size, self.config = rank, len(addresses), config
        self._address = addresses[rank]
        sockets = SocketSettings(config.buffer_bytes, config.keepalive_seconds, config.user_timeout_seconds)
        self._connections = Connections(rank, addresses, sockets=sockets, segment_bytes=config.segment_bytes)
        self._links = self._connections.links
        self._coder, self._workshop = _coder(rank, config), Workshop()
        self._dispatcher = Dispatcher(
            rank=rank,
            links=self._links,
            clock=asyncio.get_running_loop(),
            timeout_seconds=config.collective_timeout_seconds,
            warn_after_seconds=config.warn_after_seconds,
            coder=self._coder,
            workshop=self._workshop,
        )
        self._liveness = Liveness(
            rank=rank,
            links=self._links,
            suspect_after_seconds=config.suspect_after_seconds,
            called=lambda: self._dispatcher.called,
            on_silent=self._dispatcher.parting.silent,
            on_lost=self._dispatcher.parting.other_lane_ended,
        )
        self._planner = Planner(
            rank=rank,
            size=self.size,
            segment_bytes=config.segment_bytes,
            algorithm=config.algorithm,
            doubling_bytes=config.largest_doubling_bytes,
        )
        self._calls = Calls(
            self._dispatcher,
            look=self._connections.look,
            linger_seconds=config.linger_seconds,
            leaving=lambda: told.due,
        )
        self._shelf = Shelf()
        self._correspond: Correspondence | None = None
        if config.messages:
            self._correspond = correspondence(
                rank=rank,
                links=self._links,
                dispatcher=self._dispatcher,
                config=config,
                shelf=self._shelf,
                compare=self._compare,
                leaving=lambda: told.due,
            )
        self._inspector = None if config.on_nonfinite == "ignore" else Inspector(rank, time=time.monotonic)
        self._recipes: dict[tuple[Kind, str, int, Signature, str], _Recipe] = {}
        self._left = False
        self._awaited = 0
        self._busy_since = self._network_seconds = 0.0

    def __repr__(self) -> str:
        state = "left" if self._left else str(self._dispatcher.over or "joined")
        return f"<Ring rank {self.rank} of {self.size}: {state}>"

    # -- collectives

    async def allreduce(self, tensors: Tensors, op: str = "mean", *, bucket: str = "") -> Tensors:
        """Replace every tensor by its mean over all ranks, in place. The same bits everywhere.

        `op` is mean, sum, min, max or prod; for integers band, bor or bxor too, and instead of the mean the quotient:
        the sum divided by the size of the ring, without the remainder.

        `bucket` names what these tensors are, for the error feedback of lossy codecs. Calls without one share their
        feedback if their tensors have the same names, dtypes and shapes: name them if they are different things.
        """
        leaves, signature = leaves_of(tensors)
        recipe = self._recipe(Kind.ALLREDUCE, signature, op=op, bucket=bucket)
        _require_writable(leaves, signature.names)
        bundle = await self._packed(recipe, leaves)
        await self._run(recipe.plan, bundle, refusal=self._inspect(recipe, bundle, signature, bucket))
        bundle.commit()
        return tensors

    async def reduce(self, tensors: Tensors, root: int = 0, op: str = "mean") -> Tensors:
        """As `allreduce`, but only the root's tensors are replaced."""
        self._require_rank(root, "root")
        leaves, signature = leaves_of(tensors)
        recipe = self._recipe(Kind.REDUCE, signature, op=op, root=root)
        if self.rank == root:
            _require_writable(leaves, signature.names)
        bundle = await self._packed(recipe, leaves, copies=self.rank != root)
        await self._run(recipe.plan, bundle, refusal=self._inspect(recipe, bundle, signature))
        if self.rank == root:
            bundle.commit()
        else:
            bundle.give_back()
        return tensors

    async def reduce_scatter(self, tensor: Any, op: str = "mean", into: Any = None) -> Any:
        """This rank's share of the flat tensor, reduced over all ranks. The tensor itself is not changed.

        Of n elements, rank r has those from n * r // size to n * (r + 1) // size. `into`, if given, receives them.
        """
        leaf, place = leaf_of(tensor), None if into is None else leaf_of(into, "into")
        signature = leaves_of(tensor)[1]
        recipe = self._recipe(Kind.REDUCE_SCATTER, signature, op=op)
        count = recipe.groups[0].count
        share = slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)
        if place is not None:
            require_room(place, share.stop - share.start, leaf.dtype, f"the share of rank {self.rank}")
        bundle = await self._packed(recipe, [leaf], copies=True)
        await self._run(recipe.plan, bundle, refusal=self._inspect(recipe, bundle, signature))
        reduced = bundle.numbers[0].ours[share]
        if place is None:
            into = leaf.like(reduced.copy(), reduced.shape)
        else:
            place.store(reduced)
        bundle.give_back()
        return into

    async def all_gather(self, tensor: Any, into: Any = None) -> Any:
        """Every rank's tensor, by rank. All must have the same shape and dtype.

        `into`, if given, has room for the elements of all ranks, one rank after the other; it is filled and returned.
        """
        leaf, place = leaf_of(tensor), None if into is None else leaf_of(into, "into")
        recipe = self._recipe(Kind.ALL_GATHER, leaves_of(tensor)[1])
        if place is not None:
            require_room(place, self.size * recipe.groups[0].count, leaf.dtype, f"what {self.size} ranks bring")
        try:
            collected = Collected(leaf, place, rank=self.rank, size=self.size, shelf=self._shelf)
        except MemoryError as error:
            await self._give_up(recipe.plan, error)
            raise
        await self._run(recipe.plan, collected)
        parts = collected.commit()
        return parts if into is None else into

    async def broadcast(self, tensors: Tensors, root: int = 0) -> Tensors:
        """Replace every tensor by the root's, in place."""
        self._require_rank(root, "root")
        leaves, signature = leaves_of(tensors)
        recipe = self._recipe(Kind.BROADCAST, signature, root=root)
        if self.rank != root:
            _require_writable(leaves, signature.names)
        bundle = await self._packed(recipe, leaves)
        await self._run(recipe.plan, bundle)
        if self.rank == root:
            bundle.give_back()
        else:
            bundle.commit()
        return tensors

    async def barrier(self) -> None:
        """Return when every rank has called this."""
        await self._run(self._recipe(Kind.BARRIER, _NO_TENSORS).plan)

    # -- messages

    async def send(self, tensor: Any, to: int, tag: int = 0) -> None:
        """Send a tensor to one rank, which receives it. Returns when its bytes have left."""
        self._require_rank(to, "to")
        await self._correspondence().messages.send(leaf_of(tensor), to, tag)

    async def receive(self, tensor: Any, source: int | None = None, tag: int = 0) -> int:
        """Replace the tensor by one of the same dtype and size that `source` sends; None: anybody. Returns who it was.

        Messages of one rank with one tag are received in the order in which they were sent.
        """
        if source is not None:
            self._require_rank(source, "source")
        leaf = leaf_of(tensor)
        leaf.require_writable("")
        return await self._correspondence().messages.receive(leaf, source, tag)

    async def exchange(
        self, outgoing: Sequence[Any | None], incoming: Sequence[Any | None], what: str = "exchange"
    ) -> None:
        """Send `outgoing[i]` to rank i, and replace `incoming[i]` by what rank i sends here. None, or empty: nothing.

        All ranks call this, and what they send must be what is expected, in dtype and size. `what` is for errors.
        """
        sent = self._leaves_for_all(outgoing, "outgoing")
        expected = self._leaves_for_all(incoming, "incoming")
        for rank, leaf in enumerate(expected):
            if leaf is not None:
                leaf.require_writable(f"incoming[{rank}]")
        await self._correspondence().exchanges.run(sent, expected, what)

    def _leaves_for_all(self, values: Sequence[Any | None], name: str) -> list[Leaf | None]:
        if len(values) != self.size:
            raise ValueError(f"{name} has {len(values)} places, and there are {self.size} ranks: each needs one")
        return [None if value is None else leaf_of(value, f"{name}[{rank}]") for rank, value in enumerate(values)]

    def algorithm_for(self, nbytes: int) -> str:
        """Which algorithm carries an all-reduce of this size."""
        return self._planner.algorithm_for(nbytes)

    def statistics(self) -> statistics.Statistics:
        """What this ring has done so far."""
        running = time.perf_counter() - self._busy_since if self._awaited else 0.0
        return statistics.Statistics(
            collectives=self._calls.made,
            network_seconds=self._network_seconds + running,
            buffer_bytes_asked=self.config.buffer_bytes,
            links=statistics.of_links(self._links.values(), self._dispatcher.ledgers, self._liveness.slowness),
            threshold_bytes=None if self._coder is None else self._coder.threshold.reported,
            choices=() if self._coder is None else self._coder.choices(),
            slow=self._liveness.slowness.verdict(),
        )

    # -- what a checkpoint needs

    def state_dict(self) -> dict[str, Any]:
        """What lossy codecs still owe to each bucket of this rank: torch tensors if torch is loaded, else arrays."""
        kept = () if self._coder is None else self._coder.feedback.items()
        return {label.name: {"what": label.what, "error": portable(error)} for label, error in kept}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with the errors of `state_dict`. Those of buckets that now have other shapes will be dropped."""
        if not isinstance(state, Mapping):
            raise TypeError(f"expected what Ring.state_dict() returned, a mapping; got {type(state).__name__}")
        loaded = {}
        for name, kept in state.items():
            if not isinstance(kept, Mapping) or set(kept) != {"what", "error"}:
                raise ValueError(f"this is not from Ring.state_dict(): {name!r} has {kept!r}, not a what and an error")
            loaded[Label(name, str(kept["what"]))] = array_of(kept["error"], name)
        if self._coder is None and loaded:
            logger.warning("codec none has no use for what another codec still owed to %d buckets", len(loaded))
        elif self._coder is not None:
            self._coder.feedback.replace(loaded)

    def _correspondence(self) -> Correspondence:
        if self._left:
            raise RingClosed(_LEFT)
        if self._correspond is None:
            raise ConfigError("this ring carries no messages: join it with RingConfig(messages=True), on every rank")
        return self._correspond

    async def _compare(self, row: Array, what: str) -> tuple[int, Array]:
        """The rows of all ranks, and the number of the call by which they were told."""
        rows = np.empty((self.size, *row.shape), row.dtype)
        rows[self.rank] = row
        request = Request(Kind.EXCHANGE, what, (BucketShape(str(row.dtype), rows.size, row.itemsize),))
        number = await self._run(self._planner.plan(request), numbers=[Numbers(rows.reshape(-1), None, np.add)])
        return number, rows

    def _require_rank(self, rank: int, role: str) -> None:
        if not 0 <= rank < self.size:
            raise ValueError(f"{role} {rank} is not a rank of this ring: ranks go from 0 to {self.size - 1}")

    def _recipe(self, kind: Kind, signature: Signature, *, op: str = "", root: int = 0, bucket: str = "") -> "_Recipe":
        """How to do this. Remembered, because a training loop asks for the same few things again and again."""
        key = (kind, op, root, signature, bucket)
        recipe = self._recipes.get(key)
        if recipe is None:
            if len(self._recipes) >= _RECIPES_REMEMBERED:
                self._recipes.clear()
            recipe = self._recipes[key] = self._make_recipe(kind, signature, op, root, bucket)
        return recipe

    def _make_recipe(self, kind: Kind, signature: Signature, op: str, root: int, bucket: str) -> "_Recipe":
        def arithmetic_for(dtype: str) -> Arithmetic:
            if kind in REDUCING:
                return arithmetic_of(dtype, op, self.size, half_precision=self.config.half_precision)
            return Arithmetic(carrier_of(dtype), np.add, None)

        def label_of(dtype: str) -> Label:
            what = f"{kind.value} of {dtype}: {signature}"
            return Label(f"{bucket} ({dtype})" if bucket else what, what)

        groups = groups_of(signature, arithmetic_for, label_of=label_of)
        shapes = [group.shape for group in groups]
        if kind is Kind.ALL_GATHER:
            shapes = [BucketShape(shape.dtype, shape.count * self.size, shape.itemsize) for shape in shapes]
        where = f"root {root}" if kind in (Kind.BROADCAST, Kind.REDUCE) else ""
        detail = ", ".join(filter(None, [op, where, bucket and f"bucket {bucket!r}", str(signature)]))
        return _Recipe(self._planner.plan(Request(kind, detail, tuple(shapes), root)), groups)

    async def _packed(self, recipe: _Recipe, leaves: Sequence[Leaf], *, copies: bool = False) -> Bundle:
        try:
            return Bundle(leaves, recipe.groups, self._shelf, copies=copies)
        except MemoryError as error:
            await self._give_up(recipe.plan, error)
            raise

    async def _give_up(self, plan: Plan, error: MemoryError) -> None:
        """Without memory it is a call all the same: others may wait for it, and must not get the next one instead."""
        await self._run(plan, refusal=Refusal(f"it has no memory: {error}", lambda _: error))

    def _inspect(self, recipe: _Recipe, bundle: Bundle, signature: Signature, bucket: str = "") -> Refusal | None:
        """Why numbers that are not finite may not take part, if that is what `on_nonfinite` says."""
        if self._inspector is None:
            return None
        finding = self._inspector.find(recipe.groups, bundle.numbers, signature, bucket)
        if finding is not None and self.config.on_nonfinite == "raise":
            return Refusal(str(finding), finding.error)
        if finding is not None:
            self._inspector.warn(finding)
        return None

    async def _run(
        self,
        plan: Plan,
        bundle: Bundle | Collected | None = None,
        *,
        numbers: Sequence[Numbers] = (),
        refusal: Refusal | None = None,
    ) -> int:
        """Carry out a plan; its number is returned. After an error the bundle's memory is not used again."""
        try:
            if self._left:
                raise RingClosed(_LEFT)
            given = [*(bundle.numbers if bundle is not None else ()), *numbers]
            with self._awaiting():
                return await self._calls.make(plan, [*given, *[_NOTHING] * (len(plan.parts) - len(given))], refusal)
        except BaseException:
            if bundle is not None:
                bundle.discard()
            raise

    @contextmanager
    def _awaiting(self) -> Iterator[None]:
        """The time in which anything is awaited."""
        if not self._awaited:
            self._busy_since = time.perf_counter()
        self._awaited += 1
        try:
            yield
        finally:
            self._awaited -= 1
            if not self._awaited:
                self._network_seconds += time.perf_counter() - self._busy_since

    # -- joining and leaving

    async def _form(self, listener: socket.socket | None) -> None:
        config, started = self.config, time.perf_counter()
        self._dispatcher.deadlines.suspended = True
        self._dispatcher.parting.on_over = self._connections.fail
        await self._connections.open(
            events=self._dispatcher,
            mail=None if self._correspond is None else self._correspond.office,
            vitals=self._liveness,
            lanes_to=lambda peer: config.lanes if self._planner.exchanges_bulk(peer) else 0,
            settings={key: getattr(config, key) for key in _MUST_BE_EQUAL},
            door=self._door(listener),
            protection=config.load_protection(),
            same_host=config.same_host,
            timeout_seconds=config.start_timeout_seconds,
        )
        self._dispatcher.parting.on_over = None
        self._liveness.start()
        cores, ranks = os.sched_getaffinity(0), self._connections.ranks_on_this_host()
        if ranks > len(cores):
            self._calls.linger_seconds = 0.0  # those with the answer need the cores
        if self._coder is not None:
            self._coder.threads = _threads(config, len(cores) // ranks - 1)
            self._workshop.staff(self._coder.threads)
        found = np.zeros(1 + _CORES_LIMIT, np.uint8)
        found[0] = ranks < self.size
        found[[1 + core % _CORES_LIMIT for core in cores]] = 1
        await self._wait_for_all(found, config.start_timeout_seconds - (time.perf_counter() - started))
        self._planner.crowded = bool(not found[0] and self.size > np.count_nonzero(found[1:]))
        self._dispatcher.deadlines.suspended = False
        self._dispatcher.deadlines.vitals = self._liveness  # not before: who still looks for others does not answer yet

    def _door(self, listener: socket.socket | None) -> Address | socket.socket:
        if self.config.listen is None:
            return self._address if listener is None else listener
        if listener is not None:
            raise ConfigError(f"listen: {self.config.listen}: but a listening socket was given too; remove one of them")
        return parse_address(self.config.listen, "listen")

    async def _wait_for_all(self, found: Array, seconds: float) -> None:
        """All our connections are there; others may still wait for some of theirs.

        Meanwhile all learn what each has found: is a rank elsewhere, and which cores are there? Those of all together,
        because ranks that are pinned to a core each do not take turns.
        """
        request = Request(Kind.BARRIER, "who is where", (BucketShape("uint8", found.size, 1),))
        try:
            async with asyncio.timeout(seconds):
                await self._run(self._planner.plan(request), numbers=[Numbers(found, None, np.bitwise_or)])
        except TimeoutError as error:
            missing, limit = ["ranks that wait for others"], self.config.start_timeout_seconds
            raise StartTimeout(rank=self.rank, missing=missing, seconds=limit) from error

    async def _leave(self, reason: str) -> None:
        """Say goodbye, let the last bytes get there, close everything."""
        self._left = True
        self._dispatcher.parting.on_over = None
        try:
            await self._connections.stop_listening()
        finally:
            self._dispatcher.say_goodbye(reason)
            self._dispatcher.close(RingClosed("this ring has been left while a call was still open; await every call"))
            self._liveness.close()
            self._workshop.close()
            await self._connections.close()


def _coder(rank: int, config: RingConfig) -> Coder | None:
    if config.codec == "none":
        return None
    return Coder(
        rank=rank,
        codecs=registry.AUTO if config.codec == "auto" else [config.make_codec()],
        auto=config.codec == "auto",
        allow_lossy=config.allow_lossy,
        threshold_bytes=None if config.threshold_bytes == "auto" else config.threshold_bytes,
        error_feedback=None if config.error_feedback == "auto" else config.error_feedback,
        time=time.thread_time,  # what a thread really spends, not what it waits for the interpreter
    )


def _threads(config: RingConfig, idle_cores: int) -> int:
    if config.codec_threads == "auto":
        return min(max(0, idle_cores), _MOST_THREADS)
    return config.codec_threads


def _require_writable(leaves: Sequence[Leaf], names: Sequence[str]) -> None:
    for index, leaf in enumerate(leaves):
        leaf.require_writable(names[index] if names else index)


__all__ = ["Ring", "join"]
