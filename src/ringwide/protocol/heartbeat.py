"""Signs of life: what two ranks tell each other on their heartbeat lane, 28 bytes at a time.

A rank that waits asks; whoever is asked answers at once, with the stamp of the question. Both say which collective they
have called last, so that the one that all wait for is known by name, and to whom most of their bytes are stuck.
"""

from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from ringwide.errors import CorruptFrame, RemoteProtocolError

HEARTBEAT_LANE = 255
"""Its number among the connections of two ranks: beside the express lane and those for bulk."""
_LAYOUT, _CHECK = Struct("<BxHIQQ"), Struct("<I")
SIGN_BYTES = _LAYOUT.size + _CHECK.size
_MOST_MILLISECONDS = 2**32 - 1


class SignKind(IntEnum):
    """What a sign is."""

    QUESTION = 1
    ANSWER = 2


class Sign(NamedTuple):
    """One sign of life. `stuck_to` is the rank to which the sender's bytes were stuck longest, and for how long."""

    kind: int
    stuck_to: int
    stuck_milliseconds: int
    called: int
    stamp: int

    def pack(self) -> bytes:
        fields = _LAYOUT.pack(*self._replace(stuck_milliseconds=min(self.stuck_milliseconds, _MOST_MILLISECONDS)))
        return fields + _CHECK.pack(_check(fields))


def read_sign(data: bytes | bytearray | memoryview, *, size: int) -> Sign:
    """Turn untrusted bytes into a sign, or say what is wrong with them."""
    if _CHECK.unpack_from(data, _LAYOUT.size)[0] != _check(data[: _LAYOUT.size]):
        raise CorruptFrame("a sign of life was damaged on its way")
    sign = Sign._make(_LAYOUT.unpack_from(data))
    if sign.kind not in (SignKind.QUESTION, SignKind.ANSWER):
        raise RemoteProtocolError(f"a sign of life of kind {sign.kind}")
    if sign.stuck_to >= size:
        raise RemoteProtocolError(f"a sign of life that speaks of rank {sign.stuck_to}, where there are {size}")
    return sign


def _check(fields: bytes | bytearray | memoryview) -> int:
    """Of 28 bytes now and then it costs nothing, so it is there on loopback too."""
    return xxh3_64_intdigest(fields) & 0xFFFFFFFF
