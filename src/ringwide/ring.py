"""The ring as its users see it: `join` it, await its collectives, leave it."""

from __future__ import annotations  # what stands at functions that are made with every call is not computed then

import logging
import math
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import asynccontextmanager, closing, nullcontext
from typing import Any, TypeVar, overload

from ringwide.bootstrap.peers import Address, check_rank, load_peers
from ringwide.collectives.call_kinds import Gathered, Packed, Prepared, ScatteredShare
from ringwide.collectives.plan import CollectiveKind
from ringwide.config.ring_config import RingConfig
from ringwide.errors import JoinError
from ringwide.observe.statistics import Statistics
from ringwide.p2p.tensor_messages import Message
from ringwide.runtime.call import Call
from ringwide.runtime.call_cache import CallPlan, PlanCache, SmallTensorCache
from ringwide.runtime.call_queue import Refusal
from ringwide.runtime.caller_identity import Descent, noted_descent
from ringwide.runtime.core import Core, FormedRing, RingCore
from ringwide.runtime.engine import Engine
from ringwide.runtime.signals import LeaveRequest, leave_on_signal
from ringwide.runtime.subgroup import SubgroupCore
from ringwide.tensors.arithmetic import OpName
from ringwide.tensors.bucket import Label
from ringwide.tensors.leaves import Leaf, Signature, array_of, leaf_of, leaves_of, portable
from ringwide.tensors.nonfinite import Inspector
from ringwide.tensors.packing import Bundle, GatherBuffer, require_room

logger = logging.getLogger("ringwide.ring")
Tensors = TypeVar("Tensors")
Place = TypeVar("Place")
_NO_TENSORS = Signature((), (), ())


@asynccontextmanager
async def join(
    *,
    rank: int,
    peers: str | os.PathLike[str] | Sequence[str],
    config: RingConfig | None = None,
    listener: socket.socket | None = None,
) -> AsyncIterator[Ring]:
    """Meet the other ranks and be one of them for the length of the block.

    `peers` is a file with one `host:port` a line, line n for rank n, or a list of such strings. `listener` is a socket
    that listens already, for a port that was chosen by the kernel; the ring closes it, however the block ends. Raises
    `ConfigError` for what is wrong here, `JoinError` for what is wrong between ranks.
    """
    with (
        closing(listener) if listener is not None else nullcontext(),
        leave_on_signal() as told,
        noted_descent() as descent,
    ):
        addresses = load_peers(peers)
        check_rank(rank, len(addresses), str(peers) if isinstance(peers, str | os.PathLike) else "the list of peers")
        core = _core(rank, addresses, config or RingConfig(), told)
        async with _membership(core, core.form(listener), told, descent) as ring:
            yield ring


@asynccontextmanager
async def join_subgroup(
    ring: Ring, ranks: Sequence[int], *, epoch: int, config: RingConfig | None = None
) -> AsyncIterator[Ring]:
    """Be one of some ranks of a ring for the length of the block, with calls of their own over its connections.

    `ranks` are those of the ring, in their order in the subgroup. They all have the same `epoch`, which no other
    subgroup of the ring has or had. Of `config` all settings may differ from the ring's but those of the connections.
    """
    with leave_on_signal() as told, noted_descent() as descent:
        core = ring.subgroup_core(ranks, epoch, config or ring.config)
        async with _membership(core, core.form(), told, descent) as subgroup:
            yield subgroup


@asynccontextmanager
async def _membership(
    core: Core, forming: Awaitable[FormedRing], told: LeaveRequest, descent: Descent
) -> AsyncIterator[Ring]:
    leave = core.leave
    try:
        engine = Engine(core, await forming, descent)
        leave = engine.leave
        yield Ring(engine)
    except JoinError as error:
        await leave(f"it could not join: {error}")
        raise
    except BaseException as error:
        await leave(told.reason(error))
        raise
    else:
        await leave("it is done")


def _core(rank: int, addresses: Sequence[Address], config: RingConfig, told: LeaveRequest) -> RingCore:
    try:
        return RingCore(rank, addresses, config, leaving=lambda: told.due)
    except OSError as error:  # out of descriptors, for example
        raise JoinError(f"rank {rank} cannot start: {error}") from error


class Ring:
    """One rank's place in the ring. Made by `join`."""

    def __init__(self, engine: Engine) -> None:
        self.rank, self.size, self.config = engine.rank, engine.size, engine.config
        self._engine, self._calls = engine, engine.calls
        self._plans = PlanCache(
            engine.planner,
            size=self.size,
            half_precision=self.config.half_precision,
            encodes=self.config.codec != "none",
        )
        self._small_tensors = SmallTensorCache()
        quiet = self.config.on_nonfinite == "ignore"
        self._inspector = None if quiet else Inspector(self.rank, time=time.monotonic)

    @property
    def is_open(self) -> bool:
        """Whether calls can be made: it has not been left, and no rank has been lost or has left."""
        return self._engine.is_open

    def subgroup_core(self, ranks: Sequence[int], epoch: int, config: RingConfig) -> SubgroupCore:
        """Core of a subgroup of this ring, for `join_subgroup`."""
        return self._engine.subgroup_core(ranks, epoch, config)

    def __repr__(self) -> str:
        return f"<Ring rank {self.rank} of {self.size}: {self._engine}>"

    # -- collectives: each takes its place in the order when it is called, before anything can fail

    def allreduce(self, tensors: Tensors, op: OpName = "mean", *, bucket: str = "", channel: str = "") -> Call[Tensors]:
        """Replace every tensor by its mean over all ranks, in place. The same bits everywhere.

        `op` is mean, sum, min, max or prod; for integers band, bor or bxor too, and instead of the mean the quotient:
        the sum divided by the size of the ring, without the remainder.

        `bucket` names what these tensors are, for the error feedback of lossy codecs. Calls without one share their
        feedback if their tensors have the same names, dtypes and shapes: name them if they are different things.

        `channel`, here and below, names an order of calls of its own. Calls of one channel must be made in the same
        order on every rank; between channels there is no order. For programs with several tasks: see docs/ordering.md.
        """

        def prepare(gated: bool) -> Prepared[Tensors]:
            known = self._small_tensors.find(tensors, op, bucket)
            if known is not None and (known.plan.express or not gated):  # what has no bulk has no gate either
                return known
            leaves, signature = leaves_of(tensors)
            call_plan = self._plans.find(CollectiveKind.ALLREDUCE, signature, op=op, bucket=bucket, gated=gated)
            _require_writable(leaves, signature.names)
            if self._inspector is None and (call_plan.plan.express or not gated):
                self._small_tensors.learn(tensors, op, bucket, call_plan.plan, call_plan.groups)
            return self._packed(call_plan, leaves, tensors, signature, bucket)

        return self._calls.make(prepare, channel)

    def reduce(self, tensors: Tensors, root: int = 0, op: OpName = "mean", *, channel: str = "") -> Call[Tensors]:
        """As `allreduce`, but only the root's tensors are replaced."""

        def prepare(gated: bool) -> Prepared[Tensors]:
            self._require_rank(root, "root")
            leaves, signature = leaves_of(tensors)
            call_plan = self._plans.find(CollectiveKind.REDUCE, signature, op=op, root=root, gated=gated)
            if self.rank == root:
                _require_writable(leaves, signature.names)
            return self._packed(call_plan, leaves, tensors, signature, replaces=self.rank == root, reads=False)

        return self._calls.make(prepare, channel)

    @overload
    def reduce_scatter(
        self, tensor: Tensors, op: OpName = "mean", into: None = None, *, channel: str = ""
    ) -> Call[Tensors]: ...
    @overload
    def reduce_scatter(self, tensor: Any, op: OpName = "mean", *, into: Place, channel: str = "") -> Call[Place]: ...
    @overload
    def reduce_scatter(self, tensor: Any, op: OpName, into: Place, *, channel: str = "") -> Call[Place]: ...
    def reduce_scatter(self, tensor: Any, op: OpName = "mean", into: Any = None, *, channel: str = "") -> Call[Any]:
        """This rank's share of the flat tensor, reduced over all ranks. The tensor itself is not changed.

        Of n elements, rank r has those from n * r // size to n * (r + 1) // size. `into`, if given, receives them.
        """

        def prepare(gated: bool) -> Prepared[Any]:
            leaf, place = leaf_of(tensor), None if into is None else leaf_of(into, "into")
            signature = leaves_of(tensor)[1]
            call_plan = self._plans.find(CollectiveKind.REDUCE_SCATTER, signature, op=op, gated=gated)
            count = call_plan.groups[0].count
            share = slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)
            if place is not None:
                require_room(place, share.stop - share.start, leaf.dtype, f"the share of rank {self.rank}")
            bundle = Bundle([leaf], call_plan.groups, self._engine.pool, copies=True)
            self._inspect(call_plan, bundle, signature)
            return ScatteredShare(call_plan.plan, bundle, leaf, share, place, into)

        return self._calls.make(prepare, channel)

    @overload
    def all_gather(self, tensor: Tensors, into: None = None, *, channel: str = "") -> Call[list[Tensors]]: ...
    @overload
    def all_gather(self, tensor: Any, into: Place, *, channel: str = "") -> Call[Place]: ...
    def all_gather(self, tensor: Any, into: Any = None, *, channel: str = "") -> Call[Any]:
        """Every rank's tensor, by rank. All must have the same shape and dtype.

        `into`, if given, has room for the elements of all ranks, one rank after the other; it is filled and returned.
        """

        def prepare(gated: bool) -> Prepared[Any]:
            leaf, place = leaf_of(tensor), None if into is None else leaf_of(into, "into")
            call_plan = self._plans.find(CollectiveKind.ALL_GATHER, leaves_of(tensor)[1], gated=gated)
            if place is not None:
                require_room(place, self.size * call_plan.groups[0].count, leaf.dtype, f"what {self.size} ranks bring")
            collected = GatherBuffer(leaf, place, rank=self.rank, size=self.size, pool=self._engine.pool)
            return Gathered(call_plan.plan, collected, leaf, place, into)

        return self._calls.make(prepare, channel)

    def broadcast(self, tensors: Tensors, root: int = 0, *, channel: str = "") -> Call[Tensors]:
        """Replace every tensor by the root's, in place."""

        def prepare(gated: bool) -> Prepared[Tensors]:
            self._require_rank(root, "root")
            leaves, signature = leaves_of(tensors)
            call_plan = self._plans.find(CollectiveKind.BROADCAST, signature, root=root, gated=gated)
            if self.rank != root:
                _require_writable(leaves, signature.names)
            return self._packed(call_plan, leaves, tensors, replaces=self.rank != root)

        return self._calls.make(prepare, channel)

    def barrier(self, *, channel: str = "") -> Call[None]:
        """Return when every rank has called this."""
        return self._calls.make(
            lambda _: Prepared(self._plans.find(CollectiveKind.BARRIER, _NO_TENSORS).plan, (), None), channel
        )

    def made_for(self, who: object) -> None:
        """The one that joined is not the task that did, but the thread for which that was done."""
        self._calls.joined_by(who)

    def refused(self, error: Exception, *, channel: str = "") -> Call[Any]:
        """A call that failed before it could be made: it uses up its number, and the others hear why."""

        def prepare(_: bool) -> Prepared[Any]:
            raise error

        return self._calls.make(prepare, channel)

    # -- messages

    def send(self, tensor: Any, to: int, tag: int = 0) -> Call[None]:
        """Send a tensor to one rank, which receives it. Returns when its bytes have left."""

        def prepare() -> Message[None]:
            self._require_rank(to, "to")
            return self._engine.messages.sending(leaf_of(tensor), to, tag)

        return self._calls.make_message(prepare)

    def receive(self, tensor: Any, source: int | None = None, tag: int = 0) -> Call[int]:
        """Replace the tensor by one of the same dtype and size that `source` sends; None: anybody. Returns who it was.

        Messages of one rank with one tag are received in the order in which they were sent.
        """

        def prepare() -> Message[int]:
            if source is not None:
                self._require_rank(source, "source")
            leaf = leaf_of(tensor)
            leaf.require_writable("")
            return self._engine.messages.receiving(leaf, source, tag)

        return self._calls.make_message(prepare)

    def exchange(
        self,
        outgoing: Sequence[Any | None],
        incoming: Sequence[Any | None],
        what: str = "exchange",
        *,
        channel: str = "",
    ) -> Call[None]:
        """Send `outgoing[i]` to rank i, and replace `incoming[i]` by what rank i sends here. None, or empty: nothing.

        All ranks call this, and what they send must be what is expected, in dtype and size. `what` is for errors.
        """

        def prepare(gated: bool) -> Prepared[None]:
            sent = self._leaves_for_all(outgoing, "outgoing")
            expected = self._leaves_for_all(incoming, "incoming")
            for rank, leaf in enumerate(expected):
                if leaf is not None:
                    leaf.require_writable(f"incoming[{rank}]")
            return self._engine.all_to_alls.prepared(sent, expected, what, gated=gated)

        return self._calls.make(prepare, channel)

    def _leaves_for_all(self, values: Sequence[Any | None], name: str) -> list[Leaf | None]:
        if len(values) != self.size:
            raise ValueError(f"{name} has {len(values)} places, and there are {self.size} ranks: each needs one")
        return [None if value is None else leaf_of(value, f"{name}[{rank}]") for rank, value in enumerate(values)]

    def set_timeout(self, seconds: float) -> None:
        """From now on, and on this rank, this is `collective_timeout_seconds`, also for calls that are open."""
        if not 0 < seconds < math.inf:
            raise ValueError(f"a timeout of {seconds} s; it must be more than 0, and finite")
        self._engine.dispatcher.deadlines.set_timeout(seconds)

    def algorithm_for(self, nbytes: int) -> str:
        """Which algorithm carries an all-reduce of this size."""
        return self._engine.planner.algorithm_for(nbytes)

    def statistics(self) -> Statistics:
        """What this ring has done so far."""
        return self._engine.statistics()

    # -- what a checkpoint needs

    def state_dict(self) -> dict[str, Any]:
        """What lossy codecs still owe to each bucket of this rank: torch tensors if torch is loaded, else arrays."""
        kept = () if self._engine.codec_policy is None else self._engine.codec_policy.feedback.items()
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
        if self._engine.codec_policy is None and loaded:
            logger.warning("codec none has no use for what another codec still owed to %d buckets", len(loaded))
        elif self._engine.codec_policy is not None:
            self._engine.codec_policy.feedback.replace(loaded)

    def _require_rank(self, rank: int, role: str) -> None:
        if not hasattr(rank, "__index__"):
            raise TypeError(f"{role} {rank!r} is a {type(rank).__name__}; it must be an integer")
        if not 0 <= rank < self.size:
            raise ValueError(f"{role} {rank} is not a rank of this ring: ranks go from 0 to {self.size - 1}")

    def _packed(
        self,
        call_plan: CallPlan,
        leaves: Sequence[Leaf],
        tensors: Tensors,
        inspected: Signature | None = None,
        bucket: str = "",
        *,
        replaces: bool = True,
        reads: bool = True,
    ) -> Packed[Tensors]:
        """`replaces`: the result goes into the tensors. Else they are only read, for as long as the call is open."""
        bundle = Bundle(leaves, call_plan.groups, self._engine.pool, copies=not (replaces or reads))
        if inspected is not None:
            self._inspect(call_plan, bundle, inspected, bucket)
        return Packed(call_plan.plan, bundle, leaves, tensors, replaces=replaces, reads=reads)

    def _inspect(self, call_plan: CallPlan, bundle: Bundle, signature: Signature, bucket: str = "") -> None:
        """Numbers that are not finite may not take part, if that is what `on_nonfinite` says."""
        inspector = self._inspector
        if inspector is None:
            return
        finding = inspector.find(call_plan.groups, bundle.numbers, signature, bucket)
        if finding is not None and self.config.on_nonfinite == "raise":
            bundle.discard()
            raise Refusal(str(finding), finding.error)
        if finding is not None:
            inspector.warn(finding)


def _require_writable(leaves: Sequence[Leaf], names: Sequence[str]) -> None:
    for index, leaf in enumerate(leaves):
        leaf.require_writable(names[index] if names else index)


__all__ = ["Ring", "join"]
