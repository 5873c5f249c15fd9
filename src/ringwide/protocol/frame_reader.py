"""From a byte stream to frames, without I/O.

Rules:
- Any split of the stream gives the same frames.
- Bytes are received through one small staging buffer, so that a header and a small payload cost one receive. A payload
  that does not fit there is received straight into the place that `landing` names, together with the next header.
- A lane that may be paused `lands_all` of its payloads, the small ones too, though it stages several headers at once.
- `landing` may answer None, "not yet": the reader is then blocked, offers no room, and asks again in `retry`.
- On a sealed stream a header is checked before anything in it is believed, and a payload before `arrived` hears of it.
  If the frames are numbered too, each must be the next one.
- Where two ends share memory, a payload that lies there travels as a reference: the number of its slot. The reference
  `SPILLED` says that no slot was free, and that the payload follows in the stream after all.
"""

import struct
from collections.abc import Callable
from typing import Protocol

from ringwide.protocol.frame import HEADER_BYTES, Header, check_payload, unpack

Landing = Callable[[Header], memoryview | None]
Arrived = Callable[[Header, memoryview], None]

REFERENCE = struct.Struct("<I")
SPILLED = 2**32 - 1


class SharedPayloads(Protocol):
    """Memory in which some payloads lie instead of in the stream."""

    def holds(self, payload_bytes: int) -> bool:
        """Does a payload of this size lie there? Both ends know."""
        ...

    def arrived(self, header: Header, slot: int) -> bool:
        """One has come. False: there is no place for it yet."""
        ...


class FrameReader:
    """Offers `room` for the next bytes and reports each complete frame to `arrived`."""

    __slots__ = (
        "_arrived",
        "_capacity",
        "_filled",
        "_header",
        "_landed",
        "_landing",
        "_limit",
        "_next",
        "_numbered",
        "_place",
        "_sealed",
        "_shared",
        "_staging",
        "_wanted",
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
        before = HEADER_BYTES if shared is None else HEADER_BYTES + REFERENCE.size  # what stands before a payload
        self._capacity = 0 if lands_all else len(self._staging) - before
        self._filled = 0  # bytes in the staging buffer
        self._header: Header | None = None  # of the frame that is being landed
        self._place: memoryview | None = None  # where its payload goes
        self._landed = 0  # bytes of it that are there
        self._wanted = True  # all of it is in that place, and somebody may use it
        self.blocked = False

    def room(self) -> list[memoryview]:
        """Where the next bytes go, in this order; nothing while blocked."""
        if self.blocked:
            return []
        if self._place is not None:
            return [self._place[self._landed :], self._staging[:HEADER_BYTES]]
        return [self._staging[self._filled :]] if self._filled else self._whole_staging

    @property
    def inside_a_frame(self) -> bool:
        """A frame has begun and is not complete: this is no place for a stream to end."""
        return self._place is not None or self._filled > 0

    @property
    def missing(self) -> int:
        """How many bytes are certain to come before anything can happen: those of the payload that is being landed."""
        return 0 if self._place is None else len(self._place) - self._landed

    def received(self, count: int) -> None:
        """`count` bytes were put into the room."""
        if self._place is None:
            self._filled += count
        else:
            missing = len(self._place) - self._landed
            self._landed += min(count, missing)
            if count < missing:
                return
            self._filled = count - missing
            self._finish_landing()
        self._read_staged()

    def retry(self) -> None:
        """The reason for which `landing` said "not yet" may be gone: ask again."""
        if self.blocked:
            self.blocked = False
            self._read_staged()

    def divert(self, collective: int) -> None:
        """What is being landed of this collective is not wanted any more: its rest goes where nobody looks."""
        if self._header is not None and self._place is not None and self._header.collective == collective:
            self._place = memoryview(bytearray(len(self._place)))
            self._wanted = False  # nor can it be checked: its beginning is elsewhere

    def _finish_landing(self) -> None:
        header, place = self._header, self._place
        assert header is not None
        assert place is not None
        self._header = self._place = None
        if self._sealed and self._wanted:
            check_payload(header, place)
        self._arrived(header, place)

    def _read_staged(self) -> None:
        """Report every frame that lies whole in the staging buffer; then move its rest to the front."""
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
                if self._place is not None:
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
        """Move what is already here of a large payload to its place. False: there is no place yet."""
        place = self._landing(header)
        if place is None:
            self.blocked = True
            return False
        here = min(len(staged), len(place))
        place[:here] = staged[:here]
        self._header, self._place, self._landed, self._wanted = header, place, here, True
        if here == len(place):
            self._finish_landing()
        return True
