"""The frame: a fixed header, then `payload_bytes` of payload. `docs/wire.md` shows it as a table.

Rules:
- All integers are little-endian. Magic and version come first and stay first in every future version.
- A header is checked completely before anybody acts on it: `unpack` gives a `Header` or `RemoteProtocolError`.
- The header alone says where a segment is on its journey: collective, bucket, segment and hop.
"""

import struct
from enum import IntEnum
from typing import NamedTuple

from ringwide.errors import RemoteProtocolError

MAGIC = b"RW"
VERSION = 1
NEWS_LIMIT_BYTES = 4096
"""The largest payload of any frame that carries words instead of numbers."""

_LAYOUT = struct.Struct("<2sBBBBHIIQQI")
HEADER_BYTES = _LAYOUT.size


class Kind(IntEnum):
    """What a frame is. The handshake uses the first three, a joined ring the others."""

    HELLO = 1
    WELCOME = 2
    REFUSED = 3
    DATA = 16
    DISPUTE = 17
    ABORT = 18
    LOST = 19
    GOODBYE = 20


class Header(NamedTuple):
    """The fields of a frame's header, in the order in which they lie on the wire."""

    kind: int
    codec: int
    bucket: int
    hop: int
    epoch: int
    segment: int
    collective: int
    fingerprint: int
    payload_bytes: int


_KINDS = frozenset(int(kind) for kind in Kind)


def pack(header: Header) -> bytes:
    """The header as it travels."""
    return _LAYOUT.pack(MAGIC, VERSION, *header)


def unpack(buffer: bytes | bytearray | memoryview, *, limit_bytes: int) -> Header:
    """Read one header, trusting nothing: every field that has rules of its own is checked here."""
    magic, version, *fields = _LAYOUT.unpack_from(buffer)
    if magic != MAGIC:
        raise RemoteProtocolError(f"these bytes are not a ringwide frame: they begin with {magic!r}, not {MAGIC!r}")
    if version != VERSION:
        raise RemoteProtocolError(f"the frame has protocol version {version}, this is version {VERSION}")
    header = Header._make(fields)
    if header.kind not in _KINDS:
        raise RemoteProtocolError(f"unknown kind of frame: {header.kind}")
    if header.codec != 0:
        raise RemoteProtocolError(f"unknown codec number: {header.codec}")
    limit = limit_bytes if header.kind == Kind.DATA else NEWS_LIMIT_BYTES
    if header.payload_bytes > limit:
        raise RemoteProtocolError(f"the frame claims {header.payload_bytes} bytes, at most {limit} are allowed")
    return header


def news(kind: Kind, text: str, *, collective: int = 0, fingerprint: int = 0, epoch: int = 0) -> bytes:
    """A whole frame that carries words."""
    payload = text.encode()[:NEWS_LIMIT_BYTES]
    return pack(Header(kind, 0, 0, 0, epoch, 0, collective, fingerprint, len(payload))) + payload
