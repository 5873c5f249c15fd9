"""All-to-all exchange: every rank has a tensor for every other, and either all arrive or no output is changed.

1. An all-gather tells all ranks how much each sends to whom, and how much it expects. A difference is a mismatch on all
   ranks alike, before any data is sent. The number of this collective is the number of the exchange.
2. Each rank sends its messages and receives those of the others, with that number as their tag.
3. When everything has arrived and everything has left, the results are copied into the caller's tensors.

A rank that fails in between, or is cancelled, tells all others, even if it has not compared the sizes yet: others may
have. Ranks that are not done yet pass this on before they give up their own messages. So all errors name the rank where
it began, whichever rank they hear first.
"""

import asyncio
from collections.abc import Callable, Sequence

import numpy as np

from ringwide.collectives.call_kinds import Prepared, reason_of
from ringwide.collectives.plan import CollectiveKind, Plan, Planner, Request
from ringwide.collectives.running_collective import sequence_of
from ringwide.compression.codecs.base import Array
from ringwide.errors import CollectiveAborted, CollectiveMismatch, RemoteProtocolError, fresh
from ringwide.p2p.endpoint import Endpoint
from ringwide.p2p.tensor_messages import IncomingTensor, flat_of, nbytes_of, outgoing
from ringwide.p2p.transfer import AnyTransfer
from ringwide.protocol.p2p import Space
from ringwide.tensors.arithmetic import DTYPES
from ringwide.tensors.bucket import Bucket, BucketShape, BufferPool
from ringwide.tensors.leaves import Leaf, memory_of, require_unchanged

_REMEMBERED = 1024
_DTYPES_AT_MOST = 16

Leaves = Sequence[Leaf | None]


class AllToAlls:
    """The all-to-all exchanges of one rank."""

    def __init__(
        self,
        endpoint: Endpoint,
        pool: BufferPool,
        *,
        rank: int,
        size: int,
        planner: Planner,
        is_ahead: Callable[[int], bool],
        leaving: Callable[[], bool],
    ) -> None:
        self.endpoint, self.pool, self.rank, self.size = endpoint, pool, rank, size
        self._planner, self._is_ahead, self._leaving = planner, is_ahead, leaving
        self._ranks = frozenset(map(str, range(size)))
        self._open: dict[int, AllToAll] = {}
        self._given_up: dict[int, tuple[int, str]] = {}  # by others, not open here: by which rank, and why
        endpoint.watch_given_up_exchanges(self.on_given_up)

    def prepared(self, outgoing_: Leaves, incoming: Leaves, what: str, *, gated: bool) -> "AllToAll":
        row = np.stack([_figures(outgoing_), _figures(incoming)])
        rows = np.empty((self.size, *row.shape), row.dtype)
        rows[self.rank] = row
        request = Request(CollectiveKind.EXCHANGE, what, (BucketShape(str(row.dtype), rows.size, row.itemsize),))
        return AllToAll(self, self._planner.plan(request, gated=gated), rows, outgoing_, incoming, what)

    def opened(self, number: int, exchange: "AllToAll") -> None:
        """Register an exchange whose sizes fit. `CollectiveAborted` if another rank has given it up already."""
        self._open[number] = exchange
        if number in self._given_up:
            raise exchange.aborted(number, *self._given_up.pop(number))

    def closed(self, number: int) -> None:
        self._open.pop(number, None)

    def tell_given_up(self, number: int, transfers: Sequence[AnyTransfer], cause: BaseException) -> None:
        """Tell all others that this rank gives up, and name the rank where it began."""
        leaving = isinstance(cause, asyncio.CancelledError) and self._leaving()
        by, reason = self.rank, str(cause) if isinstance(cause, Exception) and str(cause) else reason_of(cause)
        if isinstance(cause, CollectiveAborted):
            by, reason = cause.by, cause.reason
        self.endpoint.give_up_exchange(number, f"{by} {reason}", leaving=leaving)
        for transfer in transfers:
            self.endpoint.give_up(transfer, reason, leaving=leaving)

    def on_given_up(self, peer: int, number: int, words: str) -> None:
        """Another rank has given up on this exchange, perhaps because of a third one."""
        by, _, reason = words.partition(" ")
        if by not in self._ranks:
            raise RemoteProtocolError(f"rank {peer} gave up on exchange {number} and names no rank of this ring")
        if self._is_ahead(number):
            return  # it has not compared the sizes either, and its abort of that collective reaches us too
        if number in self._open:
            exchange = self._open[number]
            exchange.done(exchange.aborted(number, int(by), reason))
            return
        self._given_up[number] = int(by), reason  # it is over here, or we still compare the sizes
        if len(self._given_up) > _REMEMBERED:
            del self._given_up[next(iter(self._given_up))]


class AllToAll(Prepared[None]):
    """One exchange: a collective that compares sizes, and then messages with its number."""

    plain = False
    __slots__ = (
        *("_exchanges", "_incoming", "_transfers", "_number", "_on_done", "_outgoing", "_own", "_arrivals"),
        *("_rows", "_what"),
    )

    def __init__(
        self, exchanges: AllToAlls, plan: Plan, rows: Array, outgoing_: Leaves, incoming: Leaves, what: str
    ) -> None:
        super().__init__(plan, [Bucket(rows.reshape(-1), None, np.add)], None)
        self._exchanges, self._rows, self._what = exchanges, rows, what
        self._outgoing, self._incoming = outgoing_, incoming
        self._arrivals: list[IncomingTensor] = []
        self._transfers: list[AnyTransfer] = []
        self._own: Array | None = None  # this rank's tensor for itself
        self._number = 0
        self._on_done: Callable[[Exception | None], None] = _ignore

    def written(self) -> Sequence[Array]:
        return memory_of(self._incoming)

    def read(self) -> Sequence[Array]:
        return memory_of(self._outgoing)

    def go_on(self, number: int, on_done: Callable[[Exception | None], None]) -> bool:
        self._number, self._on_done = number, on_done
        try:
            _check(self._rows, sequence_of(number), self._what)  # with the same result on all ranks
            self._exchanges.opened(number, self)
            mine = self._outgoing[self._exchanges.rank]
            self._own = None if mine is None else flat_of(mine).copy()
            self._post(number)
        except Exception as error:
            self.done(error)
        return True

    def done(self, error: Exception | None) -> None:
        """End the exchange. Only the first call counts."""
        on_done, self._on_done = self._on_done, _ignore
        if on_done is _ignore:
            return
        if error is not None:
            self.give_up(self._number, error)
        self._exchanges.closed(self._number)
        on_done(None if error is None else fresh(error))

    def _post(self, number: int) -> None:
        """Post every message in both directions, receives first, so that arriving data has memory."""
        endpoint, rank, missing = self._exchanges.endpoint, self._exchanges.rank, 1

        def on_done(error: Exception | None) -> None:
            nonlocal missing
            missing -= 1
            if error is not None or not missing:
                self.done(error)

        for peer, leaf in _others(self._incoming, rank):
            arrival = IncomingTensor(
                leaf, self._exchanges.pool, on_done, source=peer, tag=number, space=Space.EXCHANGES
            )
            missing += 1
            self._arrivals.append(arrival)
            self._transfers.append(arrival.transfer)
            endpoint.receive(arrival.transfer)
        for peer, leaf in _others(self._outgoing, rank):
            transfer = outgoing(leaf, endpoint, on_done, to=peer, tag=number, space=Space.EXCHANGES)
            missing += 1
            self._transfers.append(transfer)
            endpoint.send(transfer)
        on_done(None)

    def aborted(self, number: int, by: int, reason: str) -> CollectiveAborted:
        what = f"exchange({self._what})"
        return CollectiveAborted(number=sequence_of(number), what=what, by=by, reason=reason)

    def check(self) -> None:
        require_unchanged(self._incoming)

    def commit(self) -> None:
        for arrival in self._arrivals:
            arrival.store()
        leaf = self._incoming[self._exchanges.rank]
        if leaf is not None and self._own is not None:
            leaf.store(self._own)

    def give_back(self) -> None:
        for arrival in self._arrivals:
            arrival.give_back()
        self._break_cycles()

    def discard(self) -> None:
        for arrival in self._arrivals:
            arrival.discard()
        self._break_cycles()

    def _break_cycles(self) -> None:
        """Break reference cycles, so that nothing waits for the garbage collector."""
        for transfer in self._transfers:
            transfer.on_done = _ignore
        self._transfers, self._arrivals = [], []

    def give_up(self, number: int, cause: BaseException) -> None:
        self._on_done = _ignore
        if not isinstance(cause, CollectiveMismatch):  # which all ranks find by themselves
            self._exchanges.tell_given_up(number, self._transfers, cause)
        self._exchanges.closed(number)


def _ignore(_: Exception | None) -> None: ...


def _others(leaves: Leaves, rank: int) -> list[tuple[int, Leaf]]:
    """Other ranks with a tensor that is not empty."""
    return [(peer, leaf) for peer, leaf in enumerate(leaves) if leaf is not None and nbytes_of(leaf) and peer != rank]


def _figures(leaves: Leaves) -> Array:
    """Size and dtype of each tensor as one number, 0 for none."""
    return np.array([0 if leaf is None else _figure(leaf) for leaf in leaves], np.int64)


def _figure(leaf: Leaf) -> int:
    nbytes = nbytes_of(leaf)
    return nbytes * _DTYPES_AT_MOST + DTYPES.index(leaf.dtype) if nbytes else 0


def _check(rows: Array, number: int, what: str) -> None:
    """Compare what each rank sends with what the receivers expect. `rows` has both for each rank."""
    sent, expected = rows[:, 0, :], rows[:, 1, :].T
    different = np.argwhere(sent != expected)
    if len(different):
        sender, receiver = map(int, different[0])
        raise CollectiveMismatch(
            number=number,
            rank=sender,
            ours=f"exchange({what}) with {_named(int(sent[sender, receiver]))} for rank {receiver}",
            other_rank=receiver,
            theirs=f"exchange({what}) with room for {_named(int(expected[sender, receiver]))} from rank {sender}",
        )


def _named(figure: int) -> str:
    nbytes, dtype = divmod(figure, _DTYPES_AT_MOST)
    name = DTYPES[dtype] if dtype < len(DTYPES) else "an unknown dtype"
    return f"{nbytes} bytes of {name}" if figure else "nothing"
