"""Exchanges: every rank has something else for every other, and all of it arrives or nothing is touched.

1. All ranks tell all others how much they send to whom, and how much they expect. What does not fit is a mismatch on
   all ranks alike, before a byte has been sent. The number of this collective is the number of the exchange.
2. Each sends its messages, and receives those of the others, under that number.
3. When all has arrived, and all has left, it is copied to where it belongs.

A rank that fails in between, or is cancelled, tells all others, even if it has not compared yet: some of them perhaps
have. Those that are not through yet pass it on before they
give up their own messages, so that all name the rank with which it began, whomever they hear first.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import numpy as np

from ringwide.buckets import DTYPES, Leaf, Shelf
from ringwide.codec.codec import Array
from ringwide.errors import CollectiveAborted, CollectiveMismatch, RemoteProtocolError
from ringwide.mail.desk import AnyLetter
from ringwide.mail.office import PostOffice
from ringwide.messages import CANCELLED, Parcel, flat_of, nbytes_of, new_outcome, outgoing, settles
from ringwide.protocol.mail import Space

_REMEMBERED = 1024
_DTYPES_AT_MOST = 16

Compare = Callable[[Array, str, Callable[[int], object]], Awaitable[tuple[int, Array]]]
"""compare(row, what, on_number): the number of the collective by which all ranks tell their rows, and all rows.

on_number(number) is called when that one has begun."""
Leaves = Sequence[Leaf | None]


class Exchanges:
    """The exchanges of one rank's user."""

    def __init__(
        self,
        office: PostOffice,
        shelf: Shelf,
        *,
        rank: int,
        size: int,
        compare: Compare,
        called: Callable[[], int],
        leaving: Callable[[], bool],
    ) -> None:
        self._office, self._shelf, self._rank = office, shelf, rank
        self._ranks = frozenset(map(str, range(size)))
        self._compare, self._called, self._leaving = compare, called, leaving
        self._open: dict[int, asyncio.Future[None]] = {}
        self._names: dict[int, str] = {}
        self._given_up: dict[int, tuple[int, str]] = {}  # by others, where we have not got that far: by whom, and why
        office.on_exchange_given_up = self.hear_given_up

    async def run(self, outgoing_: Leaves, incoming: Leaves, what: str) -> None:
        row = np.stack([_figures(outgoing_), _figures(incoming)])
        begun: list[int] = []
        try:
            number, rows = await self._compare(row, what, begun.append)
        except CollectiveMismatch:  # nobody has got any further
            raise
        except BaseException as error:
            for number in begun:
                self._give_up(number, (), error)
            raise
        _check(rows, number, what)
        await self._carry_out(number, what, outgoing_, incoming)

    async def _carry_out(self, number: int, what: str, outgoing_: Leaves, incoming: Leaves) -> None:
        outcome = self._open[number] = new_outcome()
        self._names[number] = what
        parcels: list[Parcel] = []
        letters: list[AnyLetter] = []
        try:
            if number in self._given_up:
                raise self._aborted(number, *self._given_up.pop(number))
            own = None if (mine := outgoing_[self._rank]) is None else flat_of(mine).copy()
            self._post(number, outgoing_, incoming, outcome, parcels, letters)
            await outcome
        except BaseException as error:
            self._give_up(number, letters, error)
            for parcel in parcels:
                parcel.discard()
            raise
        finally:
            del self._open[number], self._names[number]
        for parcel in parcels:
            parcel.commit()
        place = incoming[self._rank]
        if place is not None and own is not None:
            place.store(own)

    def _post(
        self,
        number: int,
        outgoing_: Leaves,
        incoming: Leaves,
        outcome: "asyncio.Future[None]",
        parcels: list[Parcel],
        letters: list[AnyLetter],
    ) -> None:
        """Every message in both directions; those to receive first, so that what comes has a place."""
        settle, missing = settles(outcome), 1

        def on_done(error: Exception | None) -> None:
            nonlocal missing
            missing -= 1
            if error is not None or not missing:
                settle(error)

        for peer, leaf in _others(incoming, self._rank):
            parcel = Parcel(leaf, self._shelf, on_done, source=peer, tag=number, space=Space.EXCHANGES)
            missing += 1
            parcels.append(parcel)
            letters.append(parcel.letter)
            self._office.receive(parcel.letter)
        for peer, leaf in _others(outgoing_, self._rank):
            letter = outgoing(leaf, self._office, on_done, to=peer, tag=number, space=Space.EXCHANGES)
            missing += 1
            letters.append(letter)
            self._office.send(letter)
        on_done(None)

    def _give_up(self, number: int, letters: Sequence[AnyLetter], error: BaseException) -> None:
        cancelled = isinstance(error, asyncio.CancelledError)
        leaving = cancelled and self._leaving()
        by, reason = self._rank, CANCELLED if cancelled else str(error) or repr(error)
        if isinstance(error, CollectiveAborted) and error.number == number:
            by, reason = error.by, error.reason
        self._office.give_up_exchange(number, f"{by} {reason}", leaving=leaving)
        for letter in letters:
            self._office.give_up(letter, reason, leaving=leaving)

    def hear_given_up(self, peer: int, number: int, words: str) -> None:
        """Another rank has given up on this exchange, because of a third one perhaps."""
        by, _, reason = words.partition(" ")
        if by not in self._ranks:
            raise RemoteProtocolError(f"rank {peer} gave up on exchange {number} in strange words")
        if number > self._called():
            return  # so it has not compared either, and has told us that as well
        if number in self._open:
            settles(self._open[number])(self._aborted(number, int(by), reason))
            return
        self._given_up[number] = int(by), reason  # it is over here, or we still compare what is sent and expected
        if len(self._given_up) > _REMEMBERED:
            del self._given_up[next(iter(self._given_up))]

    def _aborted(self, number: int, by: int, reason: str) -> CollectiveAborted:
        return CollectiveAborted(number=number, what=f"exchange({self._names[number]})", by=by, reason=reason)


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
