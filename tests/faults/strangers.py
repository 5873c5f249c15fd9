"""Those who connect to ranks and are none: a process of its own, so that only what they do to the ring is measured.

`python -m tests.faults.strangers AT_A_TIME NICE PORT...` reads `go` and `pause` from its input, a line each. When it
has paused, and all strangers have hung up, it says how many there have been so far. Being nice, it leaves the cores to
the ranks.
"""

import asyncio
import os
import random
import ssl
import struct
import sys
from collections.abc import Callable
from contextlib import suppress

from ringwide.protocol.frame import MAGIC, VERSION, FrameKind

LONGEST_SECONDS = 8.0
_HEADER = struct.Struct("<HBBBBHIIQQIQI")


def random_bytes(chance: random.Random) -> bytes:
    return chance.randbytes(chance.choice([1, 3, 48, 4096, 65_536]))


def http(chance: random.Random) -> bytes:
    length = chance.choice([0, 2**31, 2**63])
    return f"POST / HTTP/1.1\r\nHost: ring\r\nContent-Length: {length}\r\n\r\n".encode()


def tls_hello(chance: random.Random) -> bytes:
    outgoing = ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="ring").do_handshake()
    return outgoing.read()


def large_claim(chance: random.Random) -> bytes:
    """Headers that claim 2^31 bytes and more; what has 64 bits claims up to 2^63."""
    kind = chance.choice([FrameKind.HELLO, FrameKind.CHALLENGE, FrameKind.DATA, FrameKind.LOST])
    huge, length = 2 ** chance.randint(31, 63), chance.choice([2**31, 2**32 - 1])
    return _HEADER.pack(MAGIC, VERSION, kind, 0, 0, 0, 0, 0, huge, huge, length, huge, 0) + bytes(64)


def half_a_header(chance: random.Random) -> bytes:
    return large_claim(chance)[: chance.randint(1, 47)]


def nothing(chance: random.Random) -> bytes:
    return b""


KINDS: tuple[Callable[[random.Random], bytes], ...] = (
    random_bytes,
    http,
    tls_hello,
    large_claim,
    half_a_header,
    nothing,
)
SLOWLY_SHARE = 1 / (len(KINDS) + 1)


class Strangers:
    """So many at a time, as long as they may."""

    def __init__(self, ports: list[int], at_a_time: int, seed: int) -> None:
        self._ports, self._at_a_time, self._chance = ports, at_a_time, random.Random(seed)
        self._crowd: list[asyncio.Task[None]] = []
        self.count = 0

    def go(self) -> None:
        self._crowd = [asyncio.create_task(self._one_after_the_other()) for _ in range(self._at_a_time)]

    async def pause(self) -> None:
        for task in self._crowd:
            task.cancel()
        await asyncio.gather(*self._crowd, return_exceptions=True)

    async def _one_after_the_other(self) -> None:
        while True:
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(LONGEST_SECONDS):
                    await self._visit(self._chance.choice(self._ports))

    async def _visit(self, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        self.count += 1
        try:
            if self._chance.random() < SLOWLY_SHARE:
                await self._say_slowly(writer, large_claim(self._chance))
            else:
                writer.write(self._chance.choice(KINDS)(self._chance))
            await reader.read()  # until the rank has enough of it
        finally:
            writer.close()

    async def _say_slowly(self, writer: asyncio.StreamWriter, words: bytes) -> None:
        for byte in words:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(1)


async def main(at_a_time: int, nice: int, *ports: int) -> None:
    strangers = Strangers(list(ports), at_a_time, seed=0)
    orders = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    os.nice(nice)
    print("ready", flush=True)
    while order := (await orders.readline()).strip():
        if order == b"go":
            strangers.go()
        else:
            await strangers.pause()
            print(strangers.count, flush=True)


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:])))
