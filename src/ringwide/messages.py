"""What a user awaits of messages: tensors in, letters out, and tensors again at the other end."""

import asyncio
import math
from collections.abc import Callable

import numpy as np

from ringwide.buckets import Leaf, Shelf, carrier_of
from ringwide.codec.codec import Array
from ringwide.collective.numbers import bytes_of
from ringwide.mail.desk import AnyLetter
from ringwide.mail.letter import Done, Incoming, Outgoing
from ringwide.mail.office import PostOffice
from ringwide.protocol.mail import Space

CANCELLED = "its task was cancelled"
_LARGEST_TAG = 2**63 - 1


class Parcel:
    """One tensor on its way in: its letter, and the memory in which it arrives."""

    def __init__(
        self, leaf: Leaf, shelf: Shelf, on_done: Done, *, source: int | None, tag: int, space: Space = Space.MESSAGES
    ) -> None:
        self._leaf, self._shelf = leaf, shelf
        self._carrier = carrier_of(leaf.dtype)
        self._memory: Array | None = None
        self.letter = Incoming(
            source=source,
            space=space,
            tag=tag,
            nbytes=nbytes_of(leaf),
            what=described(leaf),
            on_done=on_done,
            take_memory=self._take_memory,
        )

    def _take_memory(self) -> memoryview:
        self._memory = self._shelf.take(nbytes_of(self._leaf), np.dtype(np.uint8))
        return bytes_of(self._memory)

    def commit(self) -> None:
        """It is complete: into the caller's tensor."""
        if self._memory is not None:
            self._leaf.store(self._memory.view(self._carrier))
            self._shelf.give_back(self._memory)

    def discard(self) -> None:
        if self._memory is not None:
            self._shelf.drop(self._memory)


def outgoing(
    leaf: Leaf, office: PostOffice, on_done: Done, *, to: int, tag: int, space: Space = Space.MESSAGES
) -> Outgoing:
    """The letter that carries this tensor, from where it lies if it lies flat."""
    return Outgoing(
        bytes_of(flat_of(leaf)), to=to, space=space, tag=tag, what=described(leaf), on_done=on_done, sender=office
    )


def flat_of(leaf: Leaf) -> Array:
    carrier = carrier_of(leaf.dtype)
    flat = leaf.lies_flat(carrier)
    if flat is None:
        flat = np.empty(nbytes_of(leaf) // carrier.itemsize, carrier)
        leaf.load(flat)
    return flat


def described(leaf: Leaf) -> str:
    return f"{leaf.dtype}{list(leaf.shape)}"


def nbytes_of(leaf: Leaf) -> int:
    return math.prod(leaf.shape) * carrier_of(leaf.dtype).itemsize


def check_tag(tag: int) -> None:
    if not isinstance(tag, int) or not -_LARGEST_TAG - 1 <= tag <= _LARGEST_TAG:
        raise ValueError(f"tag {tag!r} is not an integer of 64 bits")


class Messages:
    """The messages of one rank's user, each with the future that its task awaits."""

    def __init__(self, office: PostOffice, shelf: Shelf, *, leaving: Callable[[], bool]) -> None:
        self._office, self._shelf, self._leaving = office, shelf, leaving

    async def send(self, leaf: Leaf, to: int, tag: int) -> None:
        """Returns when the bytes have left."""
        check_tag(tag)
        outcome = new_outcome()
        letter = outgoing(leaf, self._office, settles(outcome), to=to, tag=tag)
        self._office.send(letter)
        await self._awaited(letter, outcome)

    async def receive(self, leaf: Leaf, source: int | None, tag: int) -> int:
        """Returns the rank from which it came."""
        check_tag(tag)
        outcome = new_outcome()
        parcel = Parcel(leaf, self._shelf, settles(outcome), source=source, tag=tag)
        self._office.receive(parcel.letter)
        try:
            await self._awaited(parcel.letter, outcome)
        except BaseException:
            parcel.discard()
            raise
        parcel.commit()
        assert parcel.letter.peer is not None, "it is known who sent what has arrived"
        return parcel.letter.peer

    async def _awaited(self, letter: AnyLetter, outcome: "asyncio.Future[None]") -> None:
        try:
            await outcome
        except asyncio.CancelledError:
            self._office.give_up(letter, CANCELLED, leaving=self._leaving())
            raise


def new_outcome() -> "asyncio.Future[None]":
    return asyncio.get_running_loop().create_future()


def settles(outcome: "asyncio.Future[None]") -> Done:
    """The first that is heard decides."""

    def settle(error: Exception | None) -> None:
        if outcome.done():
            return
        if error is None:
            outcome.set_result(None)
        else:
            outcome.set_exception(error)
            outcome.exception()  # its task may be cancelled before it hears of it, and asyncio would complain

    return settle
