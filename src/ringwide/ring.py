"""The ring as its users see it: `join` it, await its collectives, leave it."""

import logging
import os
import socket
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, nullcontext
from typing import Any, TypeVar

from ringwide.buckets import Bundle, Leaf, Signature, array_of, leaf_of, leaves_of, portable
from ringwide.calls import Refusal
from ringwide.collected import Collected, require_room
from ringwide.collective.feedback import Label
from ringwide.collective.plan import Kind, Plan
from ringwide.config import RingConfig
from ringwide.engine import Engine
from ringwide.errors import JoinError
from ringwide.familiar import Familiar
from ringwide.farewell import Farewell, farewell
from ringwide.membership.peers import Address, check_rank, load_peers
from ringwide.nonfinite import Inspector
from ringwide.observe.statistics import Statistics
from ringwide.recipes import Recipe, Recipes

logger = logging.getLogger("ringwide.ring")
Tensors = TypeVar("Tensors")
_NO_TENSORS = Signature((), (), ())


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
        engine = _made(rank, addresses, config or RingConfig(), told)
        try:
            await engine.form(listener)
            yield Ring(rank, len(addresses), engine.config, engine)
        except JoinError as error:
            await engine.leave(f"it could not join: {error}")
            raise
        except BaseException as error:
            await engine.leave(told.reason(error))
            raise
        else:
            await engine.leave("it is done")


def _made(rank: int, addresses: Sequence[Address], config: RingConfig, told: Farewell) -> Engine:
    try:
        return Engine(rank, addresses, config, told)
    except OSError as error:  # out of descriptors, for example
        raise JoinError(f"rank {rank} cannot start: {error}") from error


class Ring:
    """One rank's place in the ring. Made by `join`."""

    def __init__(self, rank: int, size: int, config: RingConfig, engine: Engine) -> None:
        self.rank, self.size, self.config, self._engine = rank, size, config, engine
        self._recipes = Recipes(engine.planner, size=size, half_precision=config.half_precision)
        self._familiar = Familiar()
        self._inspector = None if config.on_nonfinite == "ignore" else Inspector(rank, time=time.monotonic)

    def __repr__(self) -> str:
        return f"<Ring rank {self.rank} of {self.size}: {self._engine}>"

    # -- collectives

    async def allreduce(self, tensors: Tensors, op: str = "mean", *, bucket: str = "") -> Tensors:
        """Replace every tensor by its mean over all ranks, in place. The same bits everywhere.

        `op` is mean, sum, min, max or prod; for integers band, bor or bxor too, and instead of the mean the quotient:
        the sum divided by the size of the ring, without the remainder.

        `bucket` names what these tensors are, for the error feedback of lossy codecs. Calls without one share their
        feedback if their tensors have the same names, dtypes and shapes: name them if they are different things.
        """
        familiar = self._familiar.find(tensors, op, bucket)
        if familiar is not None:
            await self._engine.run(*familiar)
            return tensors
        leaves, signature = leaves_of(tensors)
        recipe = self._recipes.find(Kind.ALLREDUCE, signature, op=op, bucket=bucket)
        _require_writable(leaves, signature.names)
        if self._inspector is None:
            self._familiar.learn(tensors, op, bucket, recipe.plan, recipe.groups)
        bundle = await self._carried_out(recipe, leaves, signature, bucket)
        bundle.commit()
        return tensors

    async def reduce(self, tensors: Tensors, root: int = 0, op: str = "mean") -> Tensors:
        """As `allreduce`, but only the root's tensors are replaced."""
        self._require_rank(root, "root")
        leaves, signature = leaves_of(tensors)
        recipe = self._recipes.find(Kind.REDUCE, signature, op=op, root=root)
        if self.rank == root:
            _require_writable(leaves, signature.names)
        bundle = await self._carried_out(recipe, leaves, signature, copies=self.rank != root)
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
        recipe = self._recipes.find(Kind.REDUCE_SCATTER, signature, op=op)
        count = recipe.groups[0].count
        share = slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)
        if place is not None:
            require_room(place, share.stop - share.start, leaf.dtype, f"the share of rank {self.rank}")
        bundle = await self._carried_out(recipe, [leaf], signature, copies=True)
        reduced = recipe.groups[0].totals(bundle.numbers[0].ours)[share]
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
        recipe = self._recipes.find(Kind.ALL_GATHER, leaves_of(tensor)[1])
        if place is not None:
            require_room(place, self.size * recipe.groups[0].count, leaf.dtype, f"what {self.size} ranks bring")
        try:
            collected = Collected(leaf, place, rank=self.rank, size=self.size, shelf=self._engine.shelf)
        except MemoryError as error:
            await self._give_up(recipe.plan, error)
            raise
        try:
            await self._engine.run(recipe.plan, collected.numbers)
        except BaseException:
            collected.discard()
            raise
        parts = collected.commit()
        return parts if into is None else into

    async def broadcast(self, tensors: Tensors, root: int = 0) -> Tensors:
        """Replace every tensor by the root's, in place."""
        self._require_rank(root, "root")
        leaves, signature = leaves_of(tensors)
        recipe = self._recipes.find(Kind.BROADCAST, signature, root=root)
        if self.rank != root:
            _require_writable(leaves, signature.names)
        bundle = await self._carried_out(recipe, leaves)
        if self.rank == root:
            bundle.give_back()
        else:
            bundle.commit()
        return tensors

    async def barrier(self) -> None:
        """Return when every rank has called this."""
        await self._engine.run(self._recipes.find(Kind.BARRIER, _NO_TENSORS).plan)

    # -- messages

    async def send(self, tensor: Any, to: int, tag: int = 0) -> None:
        """Send a tensor to one rank, which receives it. Returns when its bytes have left."""
        self._require_rank(to, "to")
        await self._engine.correspondence.messages.send(leaf_of(tensor), to, tag)

    async def receive(self, tensor: Any, source: int | None = None, tag: int = 0) -> int:
        """Replace the tensor by one of the same dtype and size that `source` sends; None: anybody. Returns who it was.

        Messages of one rank with one tag are received in the order in which they were sent.
        """
        if source is not None:
            self._require_rank(source, "source")
        leaf = leaf_of(tensor)
        leaf.require_writable("")
        return await self._engine.correspondence.messages.receive(leaf, source, tag)

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
        await self._engine.correspondence.exchanges.run(sent, expected, what)

    def _leaves_for_all(self, values: Sequence[Any | None], name: str) -> list[Leaf | None]:
        if len(values) != self.size:
            raise ValueError(f"{name} has {len(values)} places, and there are {self.size} ranks: each needs one")
        return [None if value is None else leaf_of(value, f"{name}[{rank}]") for rank, value in enumerate(values)]

    def algorithm_for(self, nbytes: int) -> str:
        """Which algorithm carries an all-reduce of this size."""
        return self._engine.planner.algorithm_for(nbytes)

    def statistics(self) -> Statistics:
        """What this ring has done so far."""
        return self._engine.statistics()

    # -- what a checkpoint needs

    def state_dict(self) -> dict[str, Any]:
        """What lossy codecs still owe to each bucket of this rank: torch tensors if torch is loaded, else arrays."""
        kept = () if self._engine.coder is None else self._engine.coder.feedback.items()
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
        if self._engine.coder is None and loaded:
            logger.warning("codec none has no use for what another codec still owed to %d buckets", len(loaded))
        elif self._engine.coder is not None:
            self._engine.coder.feedback.replace(loaded)

    def _require_rank(self, rank: int, role: str) -> None:
        if not 0 <= rank < self.size:
            raise ValueError(f"{role} {rank} is not a rank of this ring: ranks go from 0 to {self.size - 1}")

    async def _carried_out(
        self,
        recipe: Recipe,
        leaves: Sequence[Leaf],
        inspected: Signature | None = None,
        bucket: str = "",
        *,
        copies: bool = False,
    ) -> Bundle:
        """The tensors, packed, when all is done. After an error their memory is not used again, whatever came back."""
        try:
            bundle = Bundle(leaves, recipe.groups, self._engine.shelf, copies=copies)
        except MemoryError as error:
            await self._give_up(recipe.plan, error)
            raise
        try:
            refusal = None
            if self._inspector is not None and inspected is not None:
                refusal = self._inspect(self._inspector, recipe, bundle, inspected, bucket)
            await self._engine.run(recipe.plan, bundle.numbers, refusal)
        except BaseException:
            bundle.discard()
            raise
        return bundle

    async def _give_up(self, plan: Plan, error: MemoryError) -> None:
        """Without memory it is a call all the same: others may wait for it, and must not get the next one instead."""
        await self._engine.run(plan, refusal=Refusal(f"it has no memory: {error}", lambda _: error))

    def _inspect(
        self, inspector: Inspector, recipe: Recipe, bundle: Bundle, signature: Signature, bucket: str
    ) -> Refusal | None:
        """Why numbers that are not finite may not take part, if that is what `on_nonfinite` says."""
        finding = inspector.find(recipe.groups, bundle.numbers, signature, bucket)
        if finding is not None and self.config.on_nonfinite == "raise":
            return Refusal(str(finding), finding.error)
        if finding is not None:
            inspector.warn(finding)
        return None


def _require_writable(leaves: Sequence[Leaf], names: Sequence[str]) -> None:
    for index, leaf in enumerate(leaves):
        leaf.require_writable(names[index] if names else index)


__all__ = ["Ring", "join"]
