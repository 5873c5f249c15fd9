"""Damage to what passes a proxy: whole frames, records or signs of life, one of them on each way.

What comes after the damaged one is left as it is: a receiver that does not notice has every chance to go on.
"""

import asyncio
import random
import socket
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.faults.proxy import NO_LINGER, Way

from ringwide.protocol.frame import HEADER_BYTES
from ringwide.protocol.heartbeat import HEARTBEAT_BYTES

_PAYLOAD_BYTES_AT = 32
_RECORD_EXTRA_BYTES = 4 + 16  # the length before the ciphertext, the tag behind it
_TLS_HEADER_BYTES = 5
_HANDSHAKE_FRAMES = 2
_NEXT_SECONDS = 0.05
"""So long something that is to be swapped waits for what comes next."""


class Units:
    """Splits the bytes of one way into frames and signs of life."""

    def __init__(self) -> None:
        self._bytes, self._count = bytearray(), 0

    def __call__(self, piece: bytes) -> list[bytes]:
        self._bytes += piece
        units = []
        while len(self._bytes) >= HEARTBEAT_BYTES and 0 < (length := self._length()) <= len(self._bytes):
            units.append(bytes(self._bytes[:length]))
            del self._bytes[:length]
            self._count += 1
        return units

    def _length(self) -> int:
        """Of the next unit; 0 while it cannot be told."""
        if self._bytes[:2] != b"RW":
            return HEARTBEAT_BYTES
        if len(self._bytes) < HEADER_BYTES:
            return 0
        return HEADER_BYTES + int.from_bytes(self._bytes[_PAYLOAD_BYTES_AT : _PAYLOAD_BYTES_AT + 4], "little")


class Records(Units):
    """... into encrypted records, once the handshake is over."""

    def _length(self) -> int:
        if self._count < _HANDSHAKE_FRAMES:
            return super()._length()
        return _RECORD_EXTRA_BYTES + int.from_bytes(self._bytes[:4], "little")


class TlsRecords(Units):
    """... into records of TLS. Those of less than a sign are taken for part of the next."""

    def _length(self) -> int:
        return _TLS_HEADER_BYTES + int.from_bytes(self._bytes[3:5], "big")


SPLITS: dict[str, Callable[[], Units]] = {"checksum": Units, "encrypt": Records, "tls": TlsRecords}


class Ended(ConnectionError):
    """The proxy ends this connection."""


@dataclass(slots=True)
class Damage:
    """Each unit on each way is damaged with some probability, once on a way. A fault for `Network.set`."""

    chance: random.Random
    probability: float
    done: Counter[str] = field(default_factory=Counter)
    _ways: set[Way] = field(default_factory=set)

    async def passed(self, way: Way, piece: bytes) -> bytes:
        if way in self._ways or self.chance.random() >= self.probability:
            return piece
        self._ways.add(way)
        return await self.chance.choice(KINDS)(self, way, piece)

    def noted(self, what: str) -> None:
        self.done[what] += 1

    # -- kinds of damage

    async def flip(self, way: Way, piece: bytes) -> bytes:
        """One bit or a few, half of the time in what would be the header."""
        flipped = bytearray(piece)
        for _ in range(self.chance.choice([1, 1, 2, 8])):
            end = len(piece) if self.chance.random() < 0.5 else min(HEADER_BYTES, len(piece))
            flipped[self.chance.randrange(end)] ^= 1 << self.chance.randrange(8)
        if flipped != piece:
            self.noted("flipped")
        return bytes(flipped)

    async def overwrite(self, way: Way, piece: bytes) -> bytes:
        start = self.chance.randrange(len(piece))
        noise = self.chance.randbytes(min(self.chance.randint(1, 64), len(piece) - start))
        written = piece[:start] + noise + piece[start + len(noise) :]
        if written != piece:
            self.noted("overwritten")
        return written

    async def cut(self, way: Way, piece: bytes) -> bytes:
        """Its end is missing, or all of it, and what comes next goes on as if nothing had been."""
        self.noted("cut")
        return piece[: self.chance.randrange(len(piece))]

    async def cut_off(self, way: Way, piece: bytes) -> bytes:
        """Its end is missing, and the connection ends, with a reset or without."""
        await asyncio.get_running_loop().sock_sendall(way.target, piece[: self.chance.randrange(len(piece))])
        if self.chance.random() < 0.5:
            way.target.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
        self.noted("cut off")
        raise Ended

    async def repeat(self, way: Way, piece: bytes) -> bytes:
        self.noted("repeated")
        return piece + piece

    async def insert(self, way: Way, piece: bytes) -> bytes:
        self.noted("preceded by noise")
        return self.chance.randbytes(self.chance.randint(1, 64)) + piece

    async def swap(self, way: Way, piece: bytes) -> bytes:
        try:
            async with asyncio.timeout(_NEXT_SECONDS):
                following = (await way.waiting.get())[1]
        except TimeoutError:
            return piece  # only late
        if not following:
            way.waiting.put_nowait((0.0, following))  # the end of the way
            return piece
        self.noted("swapped")
        return following + piece

    async def lengthen(self, way: Way, piece: bytes) -> bytes:
        """The length that it claims is another one."""
        at = _PAYLOAD_BYTES_AT if len(piece) >= HEADER_BYTES else 0
        claimed = struct.pack("<I", self.chance.choice([1, 2**31, 2**32 - 1, self.chance.randrange(2**32)]))
        self.noted("with another length")
        return piece[:at] + claimed + piece[at + 4 :]


KINDS = (
    *(Damage.flip, Damage.flip, Damage.overwrite, Damage.cut, Damage.cut_off),
    *(Damage.repeat, Damage.insert, Damage.swap, Damage.lengthen),
)
