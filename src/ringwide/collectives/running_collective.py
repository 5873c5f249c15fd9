"""Collective under way on one rank, the channel that gives it its number, and frames that come before its call.

A channel is one order of collectives, numbered from 1 on every rank. Its name decides the upper bits of its numbers.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NoReturn, Protocol

from ringwide.collectives.bucket_operation import LaneLike, Operation, OtherEpochs
from ringwide.collectives.plan import Plan
from ringwide.collectives.single_segment import SingleSegmentOperation
from ringwide.errors import ConfigError, RemoteProtocolError, RingwideError
from ringwide.protocol.frame import DATA, Header, shown
from ringwide.transport.link import EXPRESS_MEMORY_BYTES

SEQUENCE_BITS = 40
_SEQUENCE_MASK = (1 << SEQUENCE_BITS) - 1
UNORDERED = (1 << 23) - 1
"""Id of the default channel of a subgroup. It is none of a name, and not 0: to other groups there is no order."""
_MOST_ID = UNORDERED - 1
"""Numbers stay below 2**63, as an exchange has its number as the tag of its messages."""
MOST_CHANNELS = 400
"""Each may have frames waiting for it, and a goodbye tells of each."""


def channel_of(number: int) -> int:
    return number >> SEQUENCE_BITS


def sequence_of(number: int) -> int:
    """Which collective of its channel this is."""
    return number & _SEQUENCE_MASK


def is_after(number: int, finished: Mapping[int, int]) -> bool:
    """Does a collective come after all that are finished, of each channel the last?"""
    return number > finished.get(number >> SEQUENCE_BITS, 0)


class Channel:
    """One rank's side of a channel."""

    __slots__ = ("first", "id", "name", "next")

    def __init__(self, name: str, default_id: int = 0) -> None:
        self.name = name
        digest = int.from_bytes(blake2b(name.encode(), digest_size=3).digest(), "little")
        self.id = digest % _MOST_ID + 1 if name else default_id
        self.first = self.next = (self.id << SEQUENCE_BITS) + 1
        """The number of the next collective."""

    @property
    def called(self) -> int:
        """The number of the last collective that was called here, or the one before the first."""
        return self.next - 1

    @property
    def suffix(self) -> str:
        """To tell its collectives from others, for people."""
        return f" on channel {self.name!r}" if self.name else ""


class Channels:
    """Those of one ring, by the upper bits of their numbers."""

    def __init__(self, *, ordered: bool = True) -> None:
        self.default = Channel("", 0 if ordered else UNORDERED)
        self._by_id = {self.default.id: self.default}

    def named(self, name: str) -> Channel:
        """The channel of this name, new if it is used for the first time."""
        channel = Channel(name)
        known = self._by_id.get(channel.id)
        if known is not None and known.name != name:
            raise ConfigError(f"channel {name!r} and channel {known.name!r} cannot be told apart; rename one of them")
        if known is None and len(self._by_id) > MOST_CHANNELS:
            raise ConfigError(f"channel {name!r} is one too many: a ring has {MOST_CHANNELS} beside its default one")
        return known or self._by_id.setdefault(channel.id, channel)

    def is_ahead(self, number: int) -> bool:
        """Has this collective not been called here yet?"""
        channel = self._by_id.get(number >> SEQUENCE_BITS)
        return channel is None or number >= channel.next

    def finished(self, unfinished: Iterable[int]) -> dict[int, int]:
        """Of each channel the last number before the first of these."""
        first = {channel_of(number): number for number in sorted(unfinished, reverse=True)}
        return {channel.id: first.get(channel.id, channel.next) - 1 for channel in self._by_id.values()}


Done = Callable[[RingwideError | None], None]
SAME_ORDER = "every rank must make the same calls in the same order"
SAME_CALLER = (
    "the order of calls that several tasks or threads make is not known to all ranks: make them in one, or give each a "
    "channel= of its own; threads that have a group each need names of their own, the same on all ranks"
)


class Mark(Protocol):
    """Who made a call, in words as a string, and what that is known by: mixed into the fingerprint."""

    bits: int


class Collective:
    """One collective under way on this rank: its operations, one a bucket, succeed or fail together."""

    begun, begun_at = False, 0.0
    told = False  # the other ranks know what we were called with
    progress_seen = -1
    progress_at = warned_at = 0.0
    succeeded: Sequence[Operation | SingleSegmentOperation] = ()  # its operations, when it is over: for an undo

    def __init__(self, number: int, plan: Plan, on_done: Done, *, channel: Channel, mark: Mark | None = None) -> None:
        self.number, self.plan, self.on_done, self._channel, self._mark = number, plan, on_done, channel, mark
        self.fingerprint = plan.fingerprint if mark is None else plan.fingerprint ^ mark.bits
        self.operations: list[Operation | SingleSegmentOperation] = []
        self.unfinished = len(plan.parts)
        self.gated = self.is_unordered_bulk = plan.gate is not None and number >> SEQUENCE_BITS > 0
        """Its bulk waits until all have called it."""

    def __repr__(self) -> str:
        return f"<Collective {self.sequence} {self.what}>"

    def is_after(self, finished: Mapping[int, int]) -> bool:
        """Does it come after all that are finished, of each channel the last?"""
        return is_after(self.number, finished)

    @property
    def sequence(self) -> int:
        """Its number within its channel, for people."""
        return sequence_of(self.number)

    @property
    def what(self) -> str:
        return self.plan.what + self._channel.suffix

    @property
    def kind(self) -> str:
        """What it is in a word, and on which channel if that has a name."""
        return self.plan.what.partition("(")[0] + self._channel.suffix

    @property
    def described(self) -> str:
        """What another rank is told that has another fingerprint. What may be long comes last, as it may be cut."""
        return "\n".join([str(self._mark or ""), self.plan.how, self.what])

    def compared_with(self, theirs: str) -> tuple[str, str, str]:
        """Our call and that of another rank, which has told it, in the words in which they differ, and what to do."""
        mark, how, what = map(shown, [*theirs.split("\n", 2), "", ""][:3])
        if not shown(self.what).startswith(what) or not what:
            return self.what, what, SAME_ORDER if mark == str(self._mark or "") else f"{SAME_ORDER}; {SAME_CALLER}"
        if how != self.plan.how:
            return f"{self.what} by {self.plan.how}", f"{what} by {how}", SAME_ORDER
        return f"{self.what} as {self._mark}", f"it as {mark}", SAME_CALLER

    def operation(self, bucket: int, peer: int) -> Operation | SingleSegmentOperation:
        """The operation of a bucket of which a peer has sent something."""
        if bucket >= len(self.operations):
            raise RemoteProtocolError(f"rank {peer} sent bucket {bucket} of collective {self.number}")
        return self.operations[bucket]

    @property
    def gate_is_open(self) -> bool:
        return self.plan.gate is not None and self.operations[self.plan.gate].done

    def undo(self) -> None:
        """Its caller was cancelled before it heard of the success, and must find its tensors as they were."""
        for operation in self.succeeded:
            operation.undo()

    def waiting_for(self) -> list[int]:
        if len(self.operations) == 1:
            return self.operations[0].waiting_for()
        return sorted({peer for operation in self.operations for peer in operation.waiting_for()})


class _NoOtherEpochs:
    """Lanes of a ring without subgroups."""

    def landing(self, lane: LaneLike, header: Header, _: memoryview | None = None) -> NoReturn:
        raise unknown_epoch(lane.peer, header)

    def arrived(self, lane: LaneLike, header: Header, payload: memoryview) -> NoReturn:
        raise unknown_epoch(lane.peer, header)

    def ended(self, lane: LaneLike) -> None: ...

    def lost(self, lane: LaneLike, reason: Exception) -> None: ...


NO_OTHER_EPOCHS = _NoOtherEpochs()


def unknown_epoch(peer: int, header: Header) -> RemoteProtocolError:
    return RemoteProtocolError(f"rank {peer} sent a frame of epoch {header.epoch}, which is none of its groups with us")


class PausedLanes:
    """Bulk lanes of a ring, and of the subgroups that share them, on which a peer is ahead of our calls.

    While a collective is open that has no place in the order of the others, no lane is paused: behind a frame that is
    ahead may lie what that collective needs. The frame is kept in memory instead.
    """

    def __init__(self) -> None:
        self.lanes: dict[LaneLike, None] = {}  # in the order in which they stopped, so that a replay is exact
        self.unordered = 0  # open collectives with bulk, on named channels and in subgroups

    def pause(self, lane: LaneLike) -> None:
        self.lanes[lane] = None

    def resume(self) -> None:
        """Even when a small collective begins: a peer that disagrees may have sent bulk for it, and nothing else."""
        lanes, self.lanes = self.lanes, {}
        for lane in lanes:
            lane.resume()


@dataclass(frozen=True, slots=True)
class LaneSharing:
    """The part of one ring in lanes that it shares with its subgroups. It sends and receives frames of one epoch."""

    epoch: int = 0
    ordered: bool = True
    """False: for a subgroup, whose collectives have no place in the order of others on these lanes."""
    paused: PausedLanes = field(default_factory=PausedLanes)
    others: OtherEpochs = NO_OTHER_EPOCHS
    """Receives frames of all other epochs."""


WINDOW = 64
"""How many collectives of a channel a rank has open at most; more calls wait."""
BUCKETS = 10
FRAME_BYTES = 640
"""What a frame costs that waits, beside its payload: Python's objects are large."""
LIMIT_BYTES_PER_PEER = BUCKETS * WINDOW * (EXPRESS_MEMORY_BYTES + FRAME_BYTES)

Frame = tuple[LaneLike, Header, bytearray]


class EarlyFrames:
    """Small frames of collectives that have not begun here, kept by number until our own call comes.

    A peer with `WINDOW` calls open can be ahead with one small frame for each bucket of each call. A call has at most
    one bucket for each dtype and an empty one, and each channel has a window of its own. A peer that sends more breaks
    the rules, so its memory here is bounded.
    """

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
