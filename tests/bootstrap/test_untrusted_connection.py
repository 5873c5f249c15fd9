"""A connection during its handshake, on a wire that keeps bytes."""

import asyncio
import socket

import pytest

from ringwide.bootstrap.untrusted_connection import HungUp, UntrustedConnection
from ringwide.transport.wire import CutOff, PlainWire, Views

FLUSHES = 5


class KeepingWire(PlainWire):
    """Takes everything at once, but the kernel has it only after some flushes."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self.send = self._take
        self.flushes = 0

    @property
    def unsent(self) -> bool:  # type: ignore[override]
        return self.flushes < FLUSHES

    def _take(self, views: Views) -> int:
        return sum(map(len, views))

    def flush(self) -> None:
        self.flushes += 1


class CutWire(PlainWire):
    """As TLS whose stream ends without being ended."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self.receive = self._cut_off

    def _cut_off(self, _: object) -> int:
        raise CutOff("TLS in it was not ended")


async def test_a_stream_that_is_cut_off_is_one_that_was_hung_up() -> None:
    """Else a dialer under TLS would not try again."""
    one, other = socket.socketpair()
    with one, other, pytest.raises(HungUp, match="TLS in it was not ended"):
        await UntrustedConnection(CutWire(one)).receive()


async def test_others_have_their_turn_while_the_kernel_takes_nothing() -> None:
    one, other = socket.socketpair()
    with one, other:
        wire = KeepingWire(one)
        sending = asyncio.create_task(UntrustedConnection(wire).send(b"words"))
        seen = []
        while not sending.done():
            await asyncio.sleep(0)
            seen.append(wire.flushes)
        await sending
        assert wire.flushes == FLUSHES, "it is not sent before the kernel has it"
        assert set(seen) >= set(range(1, FLUSHES))
