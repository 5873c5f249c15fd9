"""Frames that are ahead of us: kept until our own call comes.

A peer with `WINDOW` calls open can be ahead with one small frame for each bucket of each, and a call has at most one
bucket for each dtype and an empty one; each channel has a window of its own. A peer that sends more breaks the rules:
its memory here is bounded.
"""

from ringwide.collectives.channel import MOST_CHANNELS, channel_of
from ringwide.collectives.operation import LaneLike
from ringwide.errors import RemoteProtocolError
from ringwide.protocol.frame import DATA, Header
from ringwide.transport.link import EXPRESS_MEMORY_BYTES

WINDOW = 64
"""How many collectives of a channel a rank has open at most; more calls wait."""
BUCKETS = 10
FRAME_BYTES = 640
"""What a frame costs that waits, beside its payload: Python's objects are large."""
LIMIT_BYTES_PER_PEER = BUCKETS * WINDOW * (EXPRESS_MEMORY_BYTES + FRAME_BYTES)

Frame = tuple[LaneLike, Header, bytearray]


class EarlyFrames:
    """Small frames of collectives that have not begun here, by number."""

    def __init__(self) -> None:
        self.frames: dict[int, list[Frame]] = {}
        self._bytes_of: dict[tuple[int, int], int] = {}  # by peer and channel

    def keep(self, lane: LaneLike, header: Header, payload: memoryview) -> None:
        key = lane.peer, channel_of(header.collective)
        total = self._bytes_of.get(key, 0) + FRAME_BYTES + len(payload)
        if total > LIMIT_BYTES_PER_PEER or (key not in self._bytes_of and self._channels_of(lane.peer) > MOST_CHANNELS):
            raise RemoteProtocolError(f"rank {lane.peer} is too far ahead: {total} bytes of it wait for our calls")
        self._bytes_of[key] = total
        self.frames.setdefault(header.collective, []).append((lane, header, bytearray(payload)))

    def take(self, number: int) -> list[Frame]:
        """Those of one collective: first the news, so that who gave up or disagreed is heard before any numbers."""
        frames = self.frames.pop(number, [])
        for lane, _, payload in frames:
            key = lane.peer, channel_of(number)
            self._bytes_of[key] -= FRAME_BYTES + len(payload)
            if not self._bytes_of[key]:
                del self._bytes_of[key]
        return sorted(frames, key=_news_first)

    def _channels_of(self, peer: int) -> int:
        return sum(one == peer for one, _ in self._bytes_of)


def _news_first(frame: Frame) -> bool:
    return frame[1].kind == DATA
