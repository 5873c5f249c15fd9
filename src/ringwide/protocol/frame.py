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
from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import NamedTuple, Protocol

from xxhash import xxh3_64_intdigest

from ringwide.errors import CorruptFrame, RemoteProtocolError

MAGIC = int.from_bytes(b"RW", "little")
VERSION = 5
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

    @property
    def key(self) -> int:
        return key_of(self.epoch, self.collective)


def key_of(epoch: int, collective: int) -> int:
    """Number that tells the frames of one collective, or message, from all others on their lane."""
    return epoch << 64 | collective


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
    return numbers, words_in(payload[start:])


def words_in(payload: bytes | memoryview) -> str:
    """The words of a peer, as they may be shown."""
    return shown(bytes(payload).decode(errors="replace"))


def shown(words: str) -> str:
    """Words on one line, without what moves a cursor, colours a terminal or begins a line of a log."""
    if words.isprintable():
        return words
    return "".join(_character(each) for each in words)


def _character(each: str) -> str:
    return " " if each.isspace() else each if each.isprintable() else "\N{REPLACEMENT CHARACTER}"


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


Landing = Callable[[Header], memoryview | None]
Arrived = Callable[[Header, memoryview], None]

REFERENCE = struct.Struct("<I")
SPILLED = 2**32 - 1


class SharedPayloads(Protocol):
    """Shared memory in which some payloads lie instead of in the stream."""

    def holds(self, payload_bytes: int) -> bool:
        """Whether a payload of this size lies there. Both ends must agree."""
        ...

    def arrived(self, header: Header, slot: int) -> bool:
        """A payload lies in this slot. False: there is no memory to take it yet."""
        ...


class FrameReader:
    """A byte stream as frames, without I/O: offers `room` for the next bytes, reports complete frames to `arrived`.

    Rules:
    - Any split of the stream gives the same frames.
    - Bytes are received through one small staging buffer, so that a header and a small payload cost one receive. A
      payload that does not fit there is received straight into the memory that `landing` returns, together with the
      next header.
    - With `lands_all`, small payloads too go through `landing`, although several headers are staged at once. A lane
      that may be paused needs that.
    - `landing` may return None, "not yet". The reader is then blocked: it offers no room, and asks again in `retry`.
    - On a sealed stream a header is checked before any field is used, and a payload before `arrived` is called. If the
      frames are numbered too, each must be the next one.
    - Where two ends share memory, a payload that lies there travels as a reference, the number of its slot. The
      reference `SPILLED` means that no slot was free and that the payload follows in the stream after all.
    """

    __slots__ = (
        "_arrived",
        "_capacity",
        "_destination",
        "_diverted",
        "_filled",
        "_header",
        "_landed",
        "_landing",
        "_limit",
        "_next",
        "_numbered",
        "_sealed",
        "_shared",
        "_staging",
        "_whole_staging",
        "blocked",
    )

    def __init__(
        self,
        *,
        landing: Landing,
        arrived: Arrived,
        limit_bytes: int,
        staging_bytes: int = HEADER_BYTES,
        sealed: bool = False,
        numbered: bool = False,
        shared: SharedPayloads | None = None,
        lands_all: bool = False,
    ) -> None:
        self._landing, self._arrived, self._limit, self._shared = landing, arrived, limit_bytes, shared
        self._sealed, self._numbered = sealed, numbered
        self._next = 0  # the number of the frame whose header comes next
        self._staging = memoryview(bytearray(max(staging_bytes, HEADER_BYTES)))
        self._whole_staging = [self._staging]
        before = HEADER_BYTES if shared is None else HEADER_BYTES + REFERENCE.size  # bytes before a payload
        self._capacity = 0 if lands_all else len(self._staging) - before
        self._filled = 0  # bytes in the staging buffer
        self._header: Header | None = None  # of the frame that is being landed
        self._destination: memoryview | None = None  # of its payload
        self._landed = 0  # bytes of the payload that are there
        self._diverted = False  # part of the payload went elsewhere, so it can be neither checked nor used
        self.blocked = False

    def room(self) -> list[memoryview]:
        """Buffers for the next bytes, in this order. Empty while blocked."""
        if self.blocked:
            return []
        if self._destination is not None:
            return [self._destination[self._landed :], self._staging[:HEADER_BYTES]]
        return [self._staging[self._filled :]] if self._filled else self._whole_staging

    @property
    def inside_a_frame(self) -> bool:
        """Whether a frame has begun and is not complete, so that the stream must not end here."""
        return self._destination is not None or self._filled > 0

    @property
    def missing(self) -> int:
        """Bytes that are certain to come before anything can happen: the rest of the payload that is being landed."""
        return 0 if self._destination is None else len(self._destination) - self._landed

    def received(self, count: int) -> None:
        """`count` bytes were put into the buffers of `room`."""
        if self._destination is None:
            self._filled += count
        else:
            missing = len(self._destination) - self._landed
            self._landed += min(count, missing)
            if count < missing:
                return
            self._filled = count - missing
            self._finish_landing()
        self._read_staged()

    def retry(self) -> None:
        """Ask `landing` again, after it has returned None."""
        if self.blocked:
            self.blocked = False
            self._read_staged()

    def divert(self, key: int) -> None:
        """Receive the rest of a payload of this collective into memory that nobody uses."""
        if self._header is not None and self._destination is not None and self._header.key == key:
            self._destination = memoryview(bytearray(len(self._destination)))
            self._diverted = True

    def _finish_landing(self) -> None:
        header, destination = self._header, self._destination
        assert header is not None
        assert destination is not None
        self._header = self._destination = None
        if self._sealed and not self._diverted:
            check_payload(header, destination)
        self._arrived(header, destination)

    def _read_staged(self) -> None:
        """Report every frame that is whole in the staging buffer, then move the rest to the front."""
        staging, start, end = self._staging, 0, self._filled
        while end - start >= HEADER_BYTES:
            header = unpack(staging, start, limit_bytes=self._limit, sealed=self._sealed, number=self._next)
            body = start + HEADER_BYTES
            if self._shared is not None and self._shared.holds(header.payload_bytes):
                after = body + REFERENCE.size
                if after > end:
                    break
                (slot,) = REFERENCE.unpack_from(staging, body)
                if slot != SPILLED:
                    if not self._shared.arrived(header, slot):
                        self.blocked = True
                        break
                    start = after
                    continue
                body = after
            if header.payload_bytes > self._capacity:
                if not self._begin_landing(header, staging[body:end]):
                    break
                self._next += self._numbered
                if self._destination is not None:
                    self._filled = 0
                    return
                start = min(end, body + header.payload_bytes)
                continue
            after = body + header.payload_bytes
            if after > end:
                break
            self._next += self._numbered
            if self._sealed:
                check_payload(header, staging[body:after])
            self._arrived(header, staging[body:after])
            start = after
        if start:
            if start < end:
                staging[: end - start] = bytes(staging[start:end])
            self._filled = end - start

    def _begin_landing(self, header: Header, staged: memoryview) -> bool:
        """Move the staged part of a large payload to its destination. False: there is none yet."""
        destination = self._landing(header)
        if destination is None:
            self.blocked = True
            return False
        here = min(len(staged), len(destination))
        destination[:here] = staged[:here]
        self._header, self._destination, self._landed, self._diverted = header, destination, here, False
        if here == len(destination):
            self._finish_landing()
        return True
