"""Messages of a user: tensors to transfers, and back to tensors at the other end."""

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import numpy as np

from ringwide.collectives.call_kinds import reason_of
from ringwide.compression.codecs.base import Array
from ringwide.errors import fresh
from ringwide.p2p.endpoint import Endpoint
from ringwide.p2p.transfer import AnyTransfer, Done, IncomingTransfer, OutgoingTransfer
from ringwide.protocol.p2p import Space
from ringwide.tensors.arithmetic import carrier_of
from ringwide.tensors.bucket import BufferPool, bytes_of
from ringwide.tensors.leaves import Leaf, memory_of, require_unchanged

T = TypeVar("T")
_LARGEST_TAG = 2**63 - 1


class IncomingTensor:
    """One tensor on its way in: its transfer, and the memory in which it arrives."""

    def __init__(
        self,
        leaf: Leaf,
        pool: BufferPool,
        on_done: Done,
        *,
        source: int | None,
        tag: int,
        space: Space = Space.MESSAGES,
    ) -> None:
        self._leaf, self._pool = leaf, pool
        self._carrier = carrier_of(leaf.dtype)
        self._memory: Array | None = None
        self.transfer = IncomingTransfer(
            source=source,
            space=space,
            tag=tag,
            nbytes=nbytes_of(leaf),
            what=described(leaf),
            on_done=on_done,
            take_memory=self._take_memory,
        )

    def _take_memory(self) -> memoryview:
        self._memory = self._pool.take(nbytes_of(self._leaf), np.dtype(np.uint8))
        return bytes_of(self._memory)

    def store(self) -> None:
        """Copy a complete message into the caller's tensor."""
        if self._memory is not None:
            self._leaf.store(self._memory.view(self._carrier))

    def give_back(self) -> None:
        if self._memory is not None:
            self._pool.give_back(self._memory)
        self._break_cycles()

    def discard(self) -> None:
        if self._memory is not None:
            self._pool.drop(self._memory)
        self._break_cycles()

    def _break_cycles(self) -> None:
        """Break reference cycles, so that nothing waits for the garbage collector."""
        self.transfer.on_done, self.transfer.take_memory = _ignore, _no_memory


def outgoing(
    leaf: Leaf, endpoint: Endpoint, on_done: Done, *, to: int, tag: int, space: Space = Space.MESSAGES
) -> OutgoingTransfer:
    """The transfer that carries this tensor, without a copy if its memory is flat."""
    return OutgoingTransfer(
        bytes_of(flat_of(leaf)), to=to, space=space, tag=tag, what=described(leaf), on_done=on_done, sender=endpoint
    )


def flat_of(leaf: Leaf) -> Array:
    carrier = carrier_of(leaf.dtype)
    flat = leaf.flat_view(carrier)
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


class Message(Generic[T]):
    """One message of a user, sent or received."""

    lingers = over = False
    outcome: "asyncio.Future[None] | None" = None
    error: Exception | None = None
    on_settled: Callable[[], object]
    transfer: AnyTransfer

    def __init__(self, endpoint: Endpoint, leaf: Leaf, leaving: Callable[[], bool]) -> None:
        self._endpoint, self._leaf, self._leaving = endpoint, leaf, leaving
        self.on_settled = _no_callback

    def __str__(self) -> str:
        return str(self.transfer)

    def begin(self) -> None:
        """Give the transfer to the endpoint."""
        raise NotImplementedError

    def written(self) -> Sequence[Array]:
        return ()

    def read(self) -> Sequence[Array]:
        return ()

    def copied(self) -> Sequence[Array]:
        return ()

    def done(self, error: Exception | None) -> None:
        """End the message. Only the first call counts."""
        if not self.over:
            self.over, self.error = True, None if error is None else fresh(error)
            if self.outcome is not None and not self.outcome.done():
                self.outcome.set_result(None)

    def give_up(self, cause: BaseException) -> None:
        if not self.over:
            self._endpoint.give_up(self.transfer, reason_of(cause), leaving=self._leaving())
        self.over = True
        self.discard()
        self._break_cycles()

    def settle(self) -> T:
        error, self.error = self.error, None
        try:
            if error is not None:
                self.discard()
                raise error
            return self.commit()
        finally:
            self._break_cycles()
            del error

    def _break_cycles(self) -> None:
        """Break reference cycles, so that nothing waits for the garbage collector."""
        self.on_settled()
        self.on_settled, self.transfer.on_done = _no_callback, _ignore

    def commit(self) -> T:
        raise NotImplementedError

    def discard(self) -> None: ...


class Sent(Message[None]):
    """A message to another rank. It is done when its bytes have left."""

    transfer: OutgoingTransfer

    def __init__(self, endpoint: Endpoint, leaf: Leaf, leaving: Callable[[], bool], *, to: int, tag: int) -> None:
        super().__init__(endpoint, leaf, leaving)
        self.transfer = outgoing(leaf, endpoint, self.done, to=to, tag=tag)

    def begin(self) -> None:
        self._endpoint.send(self.transfer)

    def read(self) -> Sequence[Array]:
        return memory_of([self._leaf])

    def commit(self) -> None: ...


class Received(Message[int]):
    """A message from another rank. It is done when it is in the tensor."""

    def __init__(
        self,
        endpoint: Endpoint,
        leaf: Leaf,
        leaving: Callable[[], bool],
        pool: BufferPool,
        *,
        source: int | None,
        tag: int,
    ) -> None:
        super().__init__(endpoint, leaf, leaving)
        self._incoming = IncomingTensor(leaf, pool, self.done, source=source, tag=tag)
        self.transfer = self._incoming.transfer

    def begin(self) -> None:
        self._endpoint.receive(self._incoming.transfer)

    def written(self) -> Sequence[Array]:
        return memory_of([self._leaf])

    def commit(self) -> int:
        try:
            require_unchanged([self._leaf])
            self._incoming.store()
        finally:
            self._incoming.give_back()
        assert self.transfer.peer is not None, "the sender of a complete message is known"
        return self.transfer.peer

    def discard(self) -> None:
        self._incoming.discard()


class Messages:
    """Creates the messages of one rank's user."""

    def __init__(self, endpoint: Endpoint, pool: BufferPool, *, leaving: Callable[[], bool]) -> None:
        self._endpoint, self._pool, self._leaving = endpoint, pool, leaving

    def sending(self, leaf: Leaf, to: int, tag: int) -> Sent:
        check_tag(tag)
        return Sent(self._endpoint, leaf, self._leaving, to=to, tag=tag)

    def receiving(self, leaf: Leaf, source: int | None, tag: int) -> Received:
        check_tag(tag)
        return Received(self._endpoint, leaf, self._leaving, self._pool, source=source, tag=tag)


def _no_callback() -> None: ...


def _ignore(_: Exception | None) -> None: ...


def _no_memory() -> memoryview:
    raise RuntimeError("this message is over")
