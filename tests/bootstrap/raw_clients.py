"""Clients that are not peers, or peers of another kind: they send bytes made by hand."""

import asyncio
import json
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from xxhash import xxh3_64_intdigest

PATIENCE_SECONDS = 60
START_SECONDS = 50.0
VERSION = 5
HELLO, WELCOME, REFUSED, CHALLENGE = 1, 2, 3, 4
HEADER, CHECK = struct.Struct("<2sBBBBHIIQQIQ"), struct.Struct("<I")


def frame(kind: int, body: bytes, *, magic: bytes = b"RW", version: int = VERSION) -> bytes:
    return sealed(HEADER.pack(magic, version, kind, 0, 0, 0, 0, 0, 0, 0, len(body), xxh3_64_intdigest(body))) + body


def sealed(header: bytes) -> bytes:
    return header + CHECK.pack(xxh3_64_intdigest(header) & 0xFFFF_FFFF)


def hello(fields: dict[str, Any], *, kind: int = HELLO, version: int = VERSION) -> bytes:
    return frame(kind, json.dumps(fields).encode(), version=version)


async def read_frame(reader: asyncio.StreamReader) -> tuple[int, int, dict[str, Any]]:
    """Version, kind and fields of the next frame."""
    version, kind, words = await read_words(reader)
    return version, kind, json.loads(words)


async def read_words(reader: asyncio.StreamReader) -> tuple[int, int, bytes]:
    """Version, kind and payload of the next frame."""
    header = HEADER.unpack(await reader.readexactly(HEADER.size))
    await reader.readexactly(CHECK.size)
    return header[1], header[2], await reader.readexactly(header[-2])


@asynccontextmanager
async def visiting(peer: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection to a rank, as soon as it listens."""
    host, _, port = peer.rpartition(":")
    reader, writer = await _connected(host, int(port))
    try:
        yield reader, writer
    finally:
        await hang_up(writer)


async def _connected(host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            try:
                return await asyncio.open_connection(host, port)
            except ConnectionRefusedError:
                await asyncio.sleep(0.01)  # nothing tells when somebody listens


async def hang_up(writer: asyncio.StreamWriter) -> None:
    writer.close()
    try:
        await writer.wait_closed()
    except ConnectionError:
        return  # the other side was faster


async def rest(reader: asyncio.StreamReader) -> bytes:
    """Everything that still comes, until the other side ends the connection."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        try:
            return await reader.read()
        except ConnectionError:
            return b""
