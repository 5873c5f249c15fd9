"""A connection during its handshake, on every kind of wire."""

import asyncio

import pytest

from ringwide.membership.channel import Channel
from ringwide.transport.wire import Wire
from transport.wire import PATIENCE_SECONDS, SMALL_BUFFER_BYTES, Wiring, tcp_pair


async def fill(wire: Wire) -> int:
    """Until the wire and both kernels are full: for a while nothing more was taken."""
    total = refusals = 0
    while refusals < 20:
        try:
            total += wire.send([bytes(1000)])
            refusals = 0
        except BlockingIOError:
            refusals += 1
            await asyncio.sleep(0.002)
    return total


@pytest.mark.parametrize("words", [b"", bytes(500)], ids=["only what waits", "words"])
@pytest.mark.parametrize("wiring", Wiring, ids=lambda wiring: wiring.value)
async def test_whoever_sends_to_one_that_does_not_read_lets_others_work(wiring: Wiring, words: bytes) -> None:
    with tcp_pair(SMALL_BUFFER_BYTES) as sockets:
        wire, other = await wiring.wires(*sockets)
        total = await fill(wire) + len(words)
        async with asyncio.timeout(PATIENCE_SECONDS):
            sending = asyncio.create_task(Channel(wire).send(words))
            received = 0
            while received < total:
                await asyncio.sleep(0.001)  # as long as nobody reads, this must come back
                room = memoryview(bytearray(100_000))
                try:
                    received += other.receive([room])
                except BlockingIOError:
                    continue
            await sending
        assert not wire.unsent
