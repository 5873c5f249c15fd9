"""Frame reader: turns a byte stream into frames, without I/O.

Rules:
- Any split of the stream gives the same frames.
- Bytes are received through one small staging buffer, so that a header and a small payload cost one receive. A payload
  that does not fit there is received straight into the memory that `landing` returns, together with the next header.
- With `lands_all`, small payloads too go through `landing`, although several headers are staged at once. A lane that
  may be paused needs that.
- `landing` may return None, "not yet". The reader is then blocked: it offers no room, and asks again in `retry`.
- On a sealed stream a header is checked before any field is used, and a payload before `arrived` is called. If the
  frames are numbered too, each must be the next one.
- Where two ends share memory, a payload that lies there travels as a reference, the number of its slot. The reference
  `SPILLED` means that no slot was free and that the payload follows in the stream after all.
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
    """Shared memory in which some payloads lie instead of in the stream."""

    def holds(self, payload_bytes: int) -> bool:
        """Whether a payload of this size lies there. Both ends must agree."""
        ...

    def arrived(self, header: Header, slot: int) -> bool:
        """A payload lies in this slot. False: there is no memory to take it yet."""
        ...


class FrameReader:
    """Offers `room` for the next bytes, and calls `arrived` for each complete frame."""

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

    def divert(self, collective: int) -> None:
        """Receive the rest of a payload of this collective into memory that nobody uses."""
        if self._header is not None and self._destination is not None and self._header.collective == collective:
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
