"""AllToAlls: every rank has something else for every other, and all of it arrives or nothing is touched.

1. All ranks tell all others how much they send to whom, and how much they expect. What does not fit is a mismatch on
   all ranks alike, before a byte has been sent. The number of this collective is the number of the exchange.
2. Each sends its messages, and receives those of the others, under that number.
3. When all has arrived, and all has left, it is copied to where it belongs.

A rank that fails in between, or is cancelled, tells all others, even if it has not compared yet: some of them perhaps
have. Those that are not through yet pass it on before they
give up their own messages, so that all name the rank with which it began, whomever they hear first.
"""

import asyncio
from collections.abc import Callable, Sequence

import numpy as np

from ringwide.collectives.collective import sequence_of
from ringwide.collectives.plan import CollectiveKind, Plan, Planner, Request
from ringwide.collectives.prepared import Prepared, reason_of
from ringwide.compression.codecs.base import Array
from ringwide.errors import CollectiveAborted, CollectiveMismatch, RemoteProtocolError, fresh
from ringwide.p2p.endpoint import Endpoint
from ringwide.p2p.messages import IncomingTensor, flat_of, nbytes_of, outgoing
from ringwide.p2p.transfer import AnyTransfer
from ringwide.protocol.p2p import Space
from ringwide.tensors.arithmetic import DTYPES
from ringwide.tensors.bucket import Bucket, BucketShape, BufferPool
from ringwide.tensors.leaves import Leaf, memory_of, require_unchanged

_REMEMBERED = 1024
_DTYPES_AT_MOST = 16

Leaves = Sequence[Leaf | None]


class AllToAlls:
    """The exchanges of one rank's user."""

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
        self._given_up: dict[int, tuple[int, str]] = {}  # by others, where we have not got that far: by whom, and why
        endpoint.hear_given_up_exchanges(self.hear_given_up)

    def prepared(self, outgoing_: Leaves, incoming: Leaves, what: str, *, gated: bool) -> "AllToAll":
        row = np.stack([_figures(outgoing_), _figures(incoming)])
        rows = np.empty((self.size, *row.shape), row.dtype)
        rows[self.rank] = row
        request = Request(CollectiveKind.EXCHANGE, what, (BucketShape(str(row.dtype), rows.size, row.itemsize),))
        return AllToAll(self, self._planner.plan(request, gated=gated), rows, outgoing_, incoming, what)

    def opened(self, number: int, exchange: "AllToAll") -> None:
        """All that is sent and expected fits. `CollectiveAborted` if somebody has given up already."""
        self._open[number] = exchange
        if number in self._given_up:
            raise exchange.aborted(number, *self._given_up.pop(number))

    def closed(self, number: int) -> None:
        self._open.pop(number, None)

    def tell_given_up(self, number: int, transfers: Sequence[AnyTransfer], cause: BaseException) -> None:
        """To all others, and name the rank with which it began."""
        leaving = isinstance(cause, asyncio.CancelledError) and self._leaving()
        by, reason = self.rank, str(cause) if isinstance(cause, Exception) and str(cause) else reason_of(cause)
        if isinstance(cause, CollectiveAborted):
            by, reason = cause.by, cause.reason
        self.endpoint.give_up_exchange(number, f"{by} {reason}", leaving=leaving)
        for transfer in transfers:
            self.endpoint.give_up(transfer, reason, leaving=leaving)

    def hear_given_up(self, peer: int, number: int, words: str) -> None:
        """Another rank has given up on this exchange, because of a third one perhaps."""
        by, _, reason = words.partition(" ")
        if by not in self._ranks:
            raise RemoteProtocolError(f"rank {peer} gave up on exchange {number} in strange words")
        if self._is_ahead(number):
            return  # so it has not compared either, and has told us that as well
        if number in self._open:
            exchange = self._open[number]
            exchange.done(exchange.aborted(number, int(by), reason))
            return
        self._given_up[number] = int(by), reason  # it is over here, or we still compare what is sent and expected
        if len(self._given_up) > _REMEMBERED:
            del self._given_up[next(iter(self._given_up))]


class AllToAll(Prepared[None]):
    """One exchange: a collective that compares, and then messages under its number."""

    plain = False
    __slots__ = (
        *("_exchanges", "_incoming", "_transfers", "_number", "_on_done", "_outgoing", "_own", "_parcels"),
        *("_rows", "_what"),
    )

    def __init__(
        self, exchanges: AllToAlls, plan: Plan, rows: Array, outgoing_: Leaves, incoming: Leaves, what: str
    ) -> None:
        super().__init__(plan, [Bucket(rows.reshape(-1), None, np.add)], None)
        self._exchanges, self._rows, self._what = exchanges, rows, what
        self._outgoing, self._incoming = outgoing_, incoming
        self._parcels: list[IncomingTensor] = []
        self._transfers: list[AnyTransfer] = []
        self._own: Array | None = None  # what this rank has for itself
        self._number = 0
        self._on_done: Callable[[Exception | None], None] = _nobody

    def written(self) -> Sequence[Array]:
        return memory_of(self._incoming)

    def read(self) -> Sequence[Array]:
        return memory_of(self._outgoing)

    def go_on(self, number: int, on_done: Callable[[Exception | None], None]) -> bool:
        self._number, self._on_done = number, on_done
        try:
            _check(self._rows, sequence_of(number), self._what)  # all ranks find the same
            self._exchanges.opened(number, self)
            mine = self._outgoing[self._exchanges.rank]
            self._own = None if mine is None else flat_of(mine).copy()
            self._post(number)
        except Exception as error:
            self.done(error)
        return True

    def done(self, error: Exception | None) -> None:
        """The first that is heard decides."""
        on_done, self._on_done = self._on_done, _nobody
        if on_done is _nobody:
            return
        if error is not None:
            self.give_up(self._number, error)
        self._exchanges.closed(self._number)
        on_done(None if error is None else fresh(error))

    def _post(self, number: int) -> None:
        """Every message in both directions; those to receive first, so that what comes has a place."""
        endpoint, rank, missing = self._exchanges.endpoint, self._exchanges.rank, 1

        def on_done(error: Exception | None) -> None:
            nonlocal missing
            missing -= 1
            if error is not None or not missing:
                self.done(error)

        for peer, leaf in _others(self._incoming, rank):
            parcel = IncomingTensor(leaf, self._exchanges.pool, on_done, source=peer, tag=number, space=Space.EXCHANGES)
            missing += 1
            self._parcels.append(parcel)
            self._transfers.append(parcel.transfer)
            endpoint.receive(parcel.transfer)
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
        for parcel in self._parcels:
            parcel.store()
        place = self._incoming[self._exchanges.rank]
        if place is not None and self._own is not None:
            place.store(self._own)

    def give_back(self) -> None:
        for parcel in self._parcels:
            parcel.give_back()
        self._cut()

    def discard(self) -> None:
        for parcel in self._parcels:
            parcel.discard()
        self._cut()

    def _cut(self) -> None:
        """Nothing of it waits for the garbage collector."""
        for transfer in self._transfers:
            transfer.on_done = _nobody
        self._transfers, self._parcels = [], []

    def give_up(self, number: int, cause: BaseException) -> None:
        self._on_done = _nobody
        if not isinstance(cause, CollectiveMismatch):  # of which all know alike
            self._exchanges.tell_given_up(number, self._transfers, cause)
        self._exchanges.closed(number)


def _nobody(_: Exception | None) -> None: ...


def _others(leaves: Leaves, rank: int) -> list[tuple[int, Leaf]]:
    """Those that something is sent to or expected from."""
    return [(peer, leaf) for peer, leaf in enumerate(leaves) if leaf is not None and nbytes_of(leaf) and peer != rank]


def _figures(leaves: Leaves) -> Array:
    """Of each: its bytes and its dtype as one number, 0 for nothing."""
    return np.array([0 if leaf is None else _figure(leaf) for leaf in leaves], np.int64)


def _figure(leaf: Leaf) -> int:
    nbytes = nbytes_of(leaf)
    return nbytes * _DTYPES_AT_MOST + DTYPES.index(leaf.dtype) if nbytes else 0


def _check(rows: Array, number: int, what: str) -> None:
    """`rows` has for each rank what it sends to whom, and what it expects from whom."""
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
