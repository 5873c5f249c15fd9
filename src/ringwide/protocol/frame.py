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

MAGIC = int.from_bytes(b"RW", "little")
VERSION = 1
NEWS_LIMIT_BYTES = 4096
"""The largest payload of any frame that carries words instead of numbers."""

_LAYOUT = struct.Struct("<HBBBBHIIQQI")
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
    CHOICE = 21


DATA = int(Kind.DATA)  # a plain number: members of an enum are slow to look up, and this one is looked up per frame
_KINDS = frozenset(int(kind) for kind in Kind)


class Header(NamedTuple):
    """The fields of a frame's header, in the order in which they lie on the wire."""

    magic: int
    version: int
    kind: int
    codec: int
    bucket: int
    hop: int
    epoch: int
    segment: int
    collective: int
    fingerprint: int
    payload_bytes: int


def pack_data(
    *,
    bucket: int,
    hop: int,
    epoch: int,
    segment: int,
    collective: int,
    fingerprint: int,
    payload_bytes: int,
    codec: int = 0,
) -> bytes:
    """The header of a frame that carries numbers."""
    return _LAYOUT.pack(
        MAGIC, VERSION, DATA, codec, bucket, hop, epoch, segment, collective, fingerprint, payload_bytes
    )


def news(kind: Kind, text: str, *, collective: int = 0, fingerprint: int = 0, epoch: int = 0) -> bytes:
    """A whole frame that carries words."""
    payload = text.encode(errors="replace")[:NEWS_LIMIT_BYTES]
    return _LAYOUT.pack(MAGIC, VERSION, kind, 0, 0, 0, epoch, 0, collective, fingerprint, len(payload)) + payload


def unpack(buffer: bytes | bytearray | memoryview, offset: int = 0, *, limit_bytes: int) -> Header:
    """Read one header, trusting nothing: every field that has rules of its own is checked here."""
    header = Header._make(_LAYOUT.unpack_from(buffer, offset))
    if header.magic != MAGIC:
        raise RemoteProtocolError(f"these bytes are not a ringwide frame: they begin with {header.magic:#06x}")
    if header.version != VERSION:
        raise RemoteProtocolError(f"the frame has protocol version {header.version}, this is version {VERSION}")
    if header.kind not in _KINDS:
        raise RemoteProtocolError(f"unknown kind of frame: {header.kind}")
    if header.codec != 0 and header.kind != DATA:
        raise RemoteProtocolError(f"a frame of words has codec number {header.codec}, it must be 0")
    limit = limit_bytes if header.kind == DATA else NEWS_LIMIT_BYTES
    if header.payload_bytes > limit:
        raise RemoteProtocolError(f"the frame claims {header.payload_bytes} bytes, at most {limit} are allowed")
    return header
