"""The proxy between real sockets: bytes come whole, in order and late, an end comes after them."""

import asyncio
import random
import socket
import struct
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from bench.delay.proxy import LOOPBACK, Proxy

from ringwide.experiment.find_peers import free_ports

MOST_SECONDS = 60
NO_LINGER = struct.pack("ii", 1, 0)
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def connection(*, round_trip: float, window_bytes: int) -> AsyncIterator[tuple[Streams, Streams]]:
    """Both ends of a connection that passes a proxy."""
    arrived: asyncio.Queue[Streams] = asyncio.Queue()
    server = await asyncio.start_server(lambda *streams: arrived.put_nowait(streams), LOOPBACK, 0)
    proxy = Proxy(round_trip_seconds=round_trip, window_bytes=window_bytes)
    port = server.sockets[0].getsockname()[1]
    (address,) = proxy.open([f"{LOOPBACK}:{port}"])
    async with asyncio.timeout(MOST_SECONDS):
        here = await asyncio.open_connection(LOOPBACK, int(address.rpartition(":")[2]))
        there = await arrived.get()
        try:
            yield here, there
        finally:
            for _, writer in (here, there):
                writer.close()
            await proxy.close()
            server.close()


async def test_an_answer_takes_a_round_trip() -> None:
    async with connection(round_trip=0.1, window_bytes=1000) as (here, there):
        began = time.monotonic()
        here[1].write(b"question")
        assert await there[0].readexactly(8) == b"question"
        assert time.monotonic() - began >= 0.05
        there[1].write(b"answer")
        assert await here[0].readexactly(6) == b"answer"
        assert time.monotonic() - began >= 0.1


async def test_ten_windows_take_nine_round_trips_and_come_whole() -> None:
    window, data = 10_000, random.Random(1).randbytes(100_000)
    async with connection(round_trip=0.02, window_bytes=window) as (here, there):
        began = time.monotonic()
        here[1].write(data)
        assert await there[0].readexactly(len(data)) == data
        assert time.monotonic() - began >= 9 * 0.02


async def test_both_directions_carry_much_at_once() -> None:
    data = random.Random(2).randbytes(8_000_000)
    async with connection(round_trip=0.002, window_bytes=1_000_000) as (here, there):
        for _, writer in (here, there):
            writer.write(data)
        heard = await asyncio.gather(here[0].readexactly(len(data)), there[0].readexactly(len(data)))
        assert heard == [data, data]


async def test_an_end_comes_after_the_last_byte_and_leaves_the_other_direction_open() -> None:
    async with connection(round_trip=0.02, window_bytes=1000) as (here, there):
        here[1].write(bytes(5500))
        here[1].write_eof()
        assert await there[0].read() == bytes(5500)
        there[1].write(b"still here")
        assert await here[0].readexactly(10) == b"still here"


async def test_a_reset_ends_both_directions() -> None:
    async with connection(round_trip=0.02, window_bytes=1000) as (here, there):
        there[1].get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
        there[1].transport.abort()
        with suppress(ConnectionError):
            assert await here[0].read() == b""


async def test_a_rank_that_listens_late_is_waited_for() -> None:
    (port,) = free_ports(1, random.Random())
    proxy = Proxy(round_trip_seconds=0.0, window_bytes=1000)
    (address,) = proxy.open([f"{LOOPBACK}:{port}"])
    async with asyncio.timeout(MOST_SECONDS):
        reader, writer = await asyncio.open_connection(LOOPBACK, int(address.rpartition(":")[2]))
        writer.write(b"early")
        arrived: asyncio.Queue[Streams] = asyncio.Queue()
        server = await asyncio.start_server(lambda *streams: arrived.put_nowait(streams), LOOPBACK, port)
        there = await arrived.get()
        assert await there[0].readexactly(5) == b"early"
        for closing in (writer, there[1]):
            closing.close()
        await proxy.close()
        server.close()
        assert not await reader.read()
