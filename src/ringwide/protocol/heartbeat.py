"""Heartbeats: the messages of 28 bytes that two ranks exchange on their heartbeat lane.

A rank that waits sends a ping, and the other answers at once with a pong that returns the ping's stamp. Both carry the
last collective that their sender has called, which shows the rank that all others wait for, and the rank to which most
of the sender's bytes are stuck.
"""

from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from ringwide.errors import CorruptFrame, RemoteProtocolError

HEARTBEAT_LANE = 255
"""Number of the heartbeat lane among the connections of two ranks."""
_LAYOUT, _CHECK = Struct("<BxHIQQ"), Struct("<I")
HEARTBEAT_BYTES = _LAYOUT.size + _CHECK.size
_MOST_MILLISECONDS = 2**32 - 1


class HeartbeatKind(IntEnum):
    """Kinds of heartbeats."""

    PING = 1
    PONG = 2


class Heartbeat(NamedTuple):
    """One heartbeat. `stuck_to` is the rank to which the sender's bytes have been stuck longest."""

    kind: int
    stuck_to: int
    stuck_milliseconds: int
    called: int
    stamp: int

    def pack(self) -> bytes:
        fields = _LAYOUT.pack(*self._replace(stuck_milliseconds=min(self.stuck_milliseconds, _MOST_MILLISECONDS)))
        return fields + _CHECK.pack(_check(fields))


def read_heartbeat(data: bytes | bytearray | memoryview, *, size: int) -> Heartbeat:
    """A heartbeat from untrusted bytes, or an error that says what is wrong with them."""
    if _CHECK.unpack_from(data, _LAYOUT.size)[0] != _check(data[: _LAYOUT.size]):
        raise CorruptFrame("a heartbeat was damaged on its way")
    heartbeat = Heartbeat._make(_LAYOUT.unpack_from(data))
    if heartbeat.kind not in (HeartbeatKind.PING, HeartbeatKind.PONG):
        raise RemoteProtocolError(f"a heartbeat of unknown kind {heartbeat.kind}")
    if heartbeat.stuck_to >= size:
        raise RemoteProtocolError(f"a heartbeat names rank {heartbeat.stuck_to}, but there are only {size} ranks")
    return heartbeat


def _check(fields: bytes | bytearray | memoryview) -> int:
    """Checksum, used on loopback too: of 28 bytes now and then it costs nothing."""
    return xxh3_64_intdigest(fields) & 0xFFFFFFFF
