"""Frames: a fixed header, then `payload_bytes` of payload. `docs/wire.md` shows the header as a table.

Rules:
- All integers are little-endian. Magic and version come first and stay first in every future version.
- A header is checked completely before anybody acts on it: `unpack` gives a `Header` or `RemoteProtocolError`.
- The header alone says where a segment is on its journey: collective, bucket, segment and hop.
- A sealed frame has two checksums: one of the payload, and one of the header, which covers the first. In an unsealed
  frame both are 0. The two ends agree beforehand which of the two it must be; the frame itself does not say.
- The checksum of the header also covers a number that does not travel, such as the position of the frame on its lane.
  So a frame that was left out, repeated or swapped is noticed as well.
"""

import struct
from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from ringwide.errors import CorruptFrame, RemoteProtocolError

MAGIC = int.from_bytes(b"RW", "little")
VERSION = 4
NEWS_LIMIT_BYTES = 4096
"""Largest payload of a control frame, that is of any frame but DATA."""

_LAYOUT = struct.Struct("<HBBBBHIIQQIQI")
HEADER_BYTES = _LAYOUT.size
_PAYLOAD_CHECK, _HEADER_CHECK = struct.Struct("<Q"), struct.Struct("<I")
_CHECKED_BYTES = HEADER_BYTES - _HEADER_CHECK.size  # of the header, by its own check
_FIELDS_BYTES = _CHECKED_BYTES - _PAYLOAD_CHECK.size


class FrameKind(IntEnum):
    """Kinds of frames. The handshake uses the first four, p2p lanes those from OFFER on; every lane ends with END."""

    HELLO = 1
    WELCOME = 2
    REFUSED = 3
    CHALLENGE = 4
    DATA = 16
    DISPUTE = 17
    ABORT = 18
    LOST = 19
    GOODBYE = 20
    CHOICE = 21
    TIMEOUT = 22
    OFFER = 23
    ACCEPT = 24
    DECLINE = 25
    WITHDRAW = 26
    END = 27
    HELD = 28
    LATER = 29
    WANTED = 30


LAST_OF_COLLECTIVES = int(FrameKind.TIMEOUT)
DATA = int(
    FrameKind.DATA
)  # plain integers: members of an enum are slow to look up, and these are needed for each frame
END = int(FrameKind.END)
_KINDS = frozenset(int(kind) for kind in FrameKind)


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
    payload_check: int
    header_check: int


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
    """The header of a DATA frame, unsealed."""
    return _LAYOUT.pack(
        MAGIC, VERSION, DATA, codec, bucket, hop, epoch, segment, collective, fingerprint, payload_bytes, 0, 0
    )


def news(kind: FrameKind, text: str, *, collective: int = 0, fingerprint: int = 0, epoch: int = 0) -> bytes:
    """A whole control frame with text as its payload, unsealed. Text that is too long is cut."""
    payload = text.encode(errors="replace")[:NEWS_LIMIT_BYTES]
    return framed(kind, payload, collective=collective, fingerprint=fingerprint, epoch=epoch)


def framed(kind: FrameKind, payload: bytes, *, collective: int = 0, fingerprint: int = 0, epoch: int = 0) -> bytes:
    """A whole control frame, unsealed."""
    return _LAYOUT.pack(MAGIC, VERSION, kind, 0, 0, 0, epoch, 0, collective, fingerprint, len(payload), 0, 0) + payload


_COUNT, _NUMBER = struct.Struct("<H"), struct.Struct("<Q")


def goodbye(reason: str, finished: Iterable[int], *, epoch: int = 0) -> bytes:
    """The frame of a rank that leaves: the last collective it has finished on each channel, and its reason."""
    numbers = list(map(_NUMBER.pack, finished))
    payload = _COUNT.pack(len(numbers)) + b"".join(numbers) + reason.encode(errors="replace")
    return framed(FrameKind.GOODBYE, payload[:NEWS_LIMIT_BYTES], epoch=epoch)


def read_goodbye(payload: bytes | memoryview) -> tuple[list[int], str]:
    """The last collectives and the reason, from an untrusted payload."""
    (count,) = _COUNT.unpack_from(payload) if len(payload) >= _COUNT.size else (0,)
    start = _COUNT.size + count * _NUMBER.size
    if len(payload) < start:
        raise RemoteProtocolError(f"a goodbye of {len(payload)} bytes is too short for its own count")
    numbers = [number for (number,) in _NUMBER.iter_unpack(payload[_COUNT.size : start])]
    return numbers, bytes(payload[start:]).decode(errors="replace")


def seal(header: bytes | memoryview, payload: bytes | memoryview, number: int = 0) -> bytes:
    """The same header with both checksums."""
    checked = bytes(header[:_FIELDS_BYTES]) + _PAYLOAD_CHECK.pack(xxh3_64_intdigest(payload))
    return checked + _HEADER_CHECK.pack(_check_of_header(checked, number))


def sealed_frame(frame: bytes) -> bytes:
    """The same whole frame with both checksums."""
    payload = frame[HEADER_BYTES:]
    return seal(frame[:HEADER_BYTES], payload) + payload


def check_payload(header: Header, payload: bytes | memoryview) -> None:
    """Compare the payload of a sealed frame with the checksum in its header."""
    check = xxh3_64_intdigest(payload)
    if check != header.payload_check:
        raise CorruptFrame(
            f"a frame was damaged on its way: the checksum of its {header.payload_bytes} bytes is {check:#018x}, "
            f"its header says {header.payload_check:#018x}"
        )


def _check_of_header(checked: bytes | memoryview, number: int) -> int:
    return xxh3_64_intdigest(checked, number) & 0xFFFF_FFFF


def unpack(
    buffer: bytes | bytearray | memoryview,
    offset: int = 0,
    *,
    limit_bytes: int,
    sealed: bool = False,
    number: int = 0,
) -> Header:
    """Read one untrusted header, and check every field that has rules of its own."""
    header = tuple.__new__(Header, _LAYOUT.unpack_from(buffer, offset))  # a third of the time of Header._make
    if sealed:
        check = _check_of_header(memoryview(buffer)[offset : offset + _CHECKED_BYTES], number)
        if check != header.header_check:
            raise CorruptFrame(
                "a header was damaged on its way, or frames were left out, repeated or swapped: "
                f"the checksum is {check:#010x}, the header says {header.header_check:#010x}"
            )
    if header.magic != MAGIC:
        raise RemoteProtocolError(f"these bytes are not a ringwide frame: they begin with {header.magic:#06x}")
    if header.version != VERSION:
        raise RemoteProtocolError(f"the frame has protocol version {header.version}, this is version {VERSION}")
    if header.kind not in _KINDS:
        raise RemoteProtocolError(f"unknown kind of frame: {header.kind}")
    if header.codec != 0 and header.kind != DATA:
        raise RemoteProtocolError(f"a control frame has codec number {header.codec}, it must be 0")
    limit = limit_bytes if header.kind == DATA else NEWS_LIMIT_BYTES
    if header.payload_bytes > limit:
        raise RemoteProtocolError(f"the frame claims {header.payload_bytes} bytes, at most {limit} are allowed")
    if not sealed and (header.payload_check or header.header_check):
        raise RemoteProtocolError("the frame has checksums, but none were agreed on")
    return header
