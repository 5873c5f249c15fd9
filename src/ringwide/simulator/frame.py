"""Frames of a simulated lane: those that wait to leave, and the damage that may be done to them."""

from collections import deque
from collections.abc import Sequence

from ringwide.collectives.bucket_operation import SendOwner
from ringwide.protocol.frame import HEADER_BYTES, sealed_frame
from ringwide.simulator.scenario import Damage

_EPOCH_AT = 8
"""Offset of the epoch in a header, see docs/wire.md."""
_LONG_PAUSE = 20


class SimulatedFrame:
    """Queued frame: the bytes still to leave, and the owner of its memory."""

    __slots__ = ("echo", "key", "left", "overtaken", "owner", "pause", "started", "views")

    def __init__(self, views: list[bytes | memoryview], owner: SendOwner | None, key: int) -> None:
        self.views, self.owner, self.key = views, owner, key
        self.left = sum(map(len, views))
        self.started = False
        self.echo: SimulatedFrame | None = None  # the same bytes again
        self.overtaken = 0  # number of later frames that leave before it
        self.pause = 0.0  # how long nothing follows it

    def take(self, count: int) -> bytes:
        """Next bytes, as they are in memory now."""
        whole = b"".join(self.views)
        self.views = _after(self.views, count) if count < self.left else []
        self.left -= count
        self.started = True
        return whole if not self.left else whole[:count]


def _after(views: list[bytes | memoryview], count: int) -> list[bytes | memoryview]:
    """Buffers without their first bytes. They are views, which may still change."""
    rest: list[bytes | memoryview] = []
    for view in views:
        if count < len(view):
            rest.append(memoryview(view)[count:])
        count = max(0, count - len(view))
    return rest


def fill(room: Sequence[memoryview], inbox: bytearray) -> int:
    """Copy the first bytes of the inbox to these buffers, as a read from a socket does. Returns how many fitted."""
    count = 0
    if len(room) == 1:
        count = min(len(inbox), len(room[0]))
        room[0][:count] = inbox[:count]
        return count
    for buffer in room:
        piece = inbox[count : count + len(buffer)]
        buffer[: len(piece)] = piece
        count += len(piece)
    return count


# -- damage


def damage_last(queue: deque[SimulatedFrame], damage: Damage, sealed: bool, latency: float) -> bool:
    """Damage the frame that was queued last. False if that has to wait: for its departure, or for another frame."""
    last = queue[-1]
    match damage:
        case Damage.GARBLED:
            return False  # done when it leaves
        case Damage.REPEATED:
            last.echo = SimulatedFrame([b"".join(last.views)], None, last.key)
            queue.append(last.echo)
        case Damage.STALE:
            old = SimulatedFrame([stale(b"".join(last.views), sealed=sealed)], None, last.key)
            old.pause = _LONG_PAUSE * latency  # long enough for a rank to act on it, if it believes it
            queue.insert(-1, old)
        case Damage.SWAPPED:
            if len(queue) == 1 or queue[-2].started:
                return False
            before = queue[-2]
            queue[-2], queue[-1] = last, before
            last.overtaken, before.overtaken = 1, -1
    return True


def stale(frame: bytes, *, sealed: bool) -> bytes:
    """Valid frame like this one, but of another epoch and with other numbers."""
    old = bytearray(frame)
    old[_EPOCH_AT] ^= 1
    header, payload = bytes(old[:HEADER_BYTES]), bytes(255 - byte for byte in old[HEADER_BYTES:])
    return sealed_frame(header + payload) if sealed else header + payload


def garbled(data: bytes, place: float) -> bytes:
    """Data with one flipped bit: the first one for `place` 0, the last one for 1."""
    damaged = bytearray(data)
    bit = min(int(place * 8 * len(data)), 8 * len(data) - 1)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)
