"""What the simulator has found in the dispatcher, one small story each. Whole rings are in tests/simulation."""

from collections.abc import Callable

import numpy as np
import pytest

from ringwide.collectives import running_collective as early_frames
from ringwide.collectives.bucket_operation import Operation
from ringwide.collectives.dispatcher import Dispatcher
from ringwide.collectives.plan import CollectiveKind, Plan, Planner, Request
from ringwide.errors import (
    CollectiveAborted,
    CollectiveTimeout,
    CorruptFrame,
    PeerLeft,
    PeerLost,
    RemoteProtocolError,
    RingwideError,
)
from ringwide.protocol import frame
from ringwide.protocol.frame import HEADER_BYTES, Header
from ringwide.tensors.bucket import Bucket, BucketShape
from ringwide.transport.lane_buffers import Scratch

SIZE, SEGMENT_BYTES, EXPRESS_BYTES = 3, 8, 16


class StoppedClock:
    """Time stands still until `tick`, which runs what was to be called next."""

    def __init__(self) -> None:
        self.now = 0.0
        self._next: Callable[[], object] = lambda: None

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[[], object], /) -> None:
        self._next = callback

    def tick(self, now: float) -> None:
        self.now = now
        self._next()


class RecordingLink:
    """The kernel takes the first `room` frames with an owner at once, and keeps the others waiting."""

    def __init__(self, room: int = 0) -> None:
        self.told: list[Header] = []
        self.words: list[str] = []
        self.waiting: list[Operation] = []
        self._room = room

    def send_express(self, header: bytes, payload: memoryview) -> None: ...

    def send_bulk(self, header: bytes, payload: memoryview, *, stripe: int, owner: Operation | None, key: int) -> None:
        if owner is None:
            return
        if self._room > 0:
            self._room -= 1
            owner.sent()
        else:
            self.waiting.append(owner)

    def reserve_bulk(self, nbytes: int, *, stripe: int) -> memoryview | None:
        return None

    def send_reserved(self, header: bytes, *, stripe: int) -> None: ...

    def tell(self, told: bytes) -> None:
        self.told.append(frame.unpack(told, limit_bytes=0))
        self.words.append(told[HEADER_BYTES:].decode())

    def forget(self, key: int) -> None:
        self.waiting.clear()


class StillLane:
    """A lane that does nothing but count how often it was resumed."""

    def __init__(self, peer: int, index: int = 0) -> None:
        self.peer, self.index, self.resumed, self.scratch = peer, index, 0, Scratch()

    def resume(self) -> None:
        self.resumed += 1


class KnownHeartbeats:
    """What the other ranks have told, and what was asked of them."""

    def __init__(self) -> None:
        self.calls: dict[int, int] = {}
        self.watched: list[int | str] = []

    def watch(self, collective: int, /) -> None:
        self.watched.append(collective)

    def rest(self) -> None:
        self.watched.append("rest")

    def called(self, peer: int, /) -> int:
        return self.calls.get(peer, 0)


class OneRank:
    """Rank 0 of three, or another, its links and what its calls ended with."""

    def __init__(self, *, room: int = 0, rank: int = 0) -> None:
        self.links = {peer: RecordingLink(room) for peer in range(SIZE) if peer != rank}
        self.clock = StoppedClock()
        self.dispatcher = Dispatcher(rank=rank, links=self.links, clock=self.clock, timeout_seconds=1.0)
        self.heartbeats = KnownHeartbeats()
        self.dispatcher.deadlines.start(self.heartbeats)
        self.endings: list[RingwideError | None] = []
        self._planner = Planner(
            rank=rank,
            size=SIZE,
            segment_bytes=SEGMENT_BYTES,
            algorithm="auto",
            tree_bytes=0,
            express_bytes=EXPRESS_BYTES,
        )

    def call(self, kind: CollectiveKind, count: int) -> Plan:
        plan = self._planner.plan(Request(kind, "sum", (BucketShape("uint8", count, 1),)))
        arrays = [np.ones(count, np.uint8), *[np.empty(0, np.uint8)] * (len(plan.parts) - 1)]
        numbers = [Bucket(array, None, np.add) for array in arrays]
        self.dispatcher.submit(plan, numbers, self.endings.append)
        return plan

    def hear(self, peer: int, told: bytes) -> None:
        header = frame.unpack(told, limit_bytes=1 << 20)
        self.dispatcher.arrived(StillLane(peer), header, memoryview(told)[HEADER_BYTES:])


BULK, SMALL = 40, 1


def test_a_root_is_not_done_when_only_its_first_segments_have_left() -> None:
    rank = OneRank(room=1)
    plan = rank.call(CollectiveKind.BROADCAST, BULK)
    for peer in (2, 1):  # the round of empty frames that goes with every broadcast
        rank.hear(
            peer,
            frame.pack_data(
                bucket=1, hop=peer, epoch=0, segment=0, collective=1, fingerprint=plan.fingerprint, payload_bytes=0
            ),
        )
    assert rank.endings == []
    for owner in list(rank.links[1].waiting):
        owner.sent()
    assert rank.endings == [None]


def test_a_paused_lane_is_asked_again_when_a_small_collective_begins() -> None:
    """The peer has bulk where we have a small call: only its frame tells us that we disagree."""
    rank, lane = OneRank(), StillLane(peer=2, index=1)
    bulk = frame.pack_data(bucket=0, hop=1, epoch=0, segment=0, collective=1, fingerprint=5, payload_bytes=8)
    assert rank.dispatcher.landing(lane, frame.unpack(bulk, limit_bytes=SEGMENT_BYTES)) is None
    rank.call(CollectiveKind.BARRIER, 0)
    assert lane.resumed == 1


def test_a_peer_that_is_lost_after_another_has_left_ends_what_is_open() -> None:
    rank = OneRank()
    rank.call(CollectiveKind.ALLREDUCE, BULK)
    rank.hear(1, frame.goodbye("it is done", [1]))
    assert rank.endings == []  # rank 1 has seen the end of it, so what we need is on its way
    rank.dispatcher.lost(StillLane(2), ConnectionResetError("reset"))
    (error,) = rank.endings
    assert isinstance(error, PeerLost)
    assert error.rank == 2


def test_a_call_that_a_departed_peer_has_seen_the_end_of_still_hears_how_it_ended() -> None:
    rank = OneRank()
    rank.hear(1, frame.news(frame.FrameKind.ABORT, "its task was cancelled", collective=1))
    rank.hear(1, frame.goodbye("it is done", [1]))
    rank.call(CollectiveKind.ALLREDUCE, SMALL)
    assert isinstance(rank.endings[0], CollectiveAborted)
    with pytest.raises(PeerLeft):
        rank.call(CollectiveKind.ALLREDUCE, SMALL)


def test_damage_on_a_lane_is_told_as_such() -> None:
    rank = OneRank()
    rank.call(CollectiveKind.ALLREDUCE, BULK)
    rank.dispatcher.lost(StillLane(2), CorruptFrame("a frame was damaged on its way"))
    (error,) = rank.endings
    assert isinstance(error, CorruptFrame)
    assert str(error) == "from rank 2: a frame was damaged on its way"


@pytest.mark.parametrize("words", ["²  is no number", "", "somebody", "9" * 4000])
def test_news_of_a_loss_that_names_nobody_is_no_accident(words: str) -> None:
    rank = OneRank()
    rank.hear(2, frame.news(frame.FrameKind.LOST, words))
    assert isinstance(rank.dispatcher.over, PeerLost)


@pytest.mark.parametrize("reason", [EOFError("it closed the connection"), ConnectionResetError("reset")])
@pytest.mark.parametrize("lane", [0, 1])
def test_a_stream_that_is_cut_after_the_goodbye_ends_what_still_waits_for_it(reason: Exception, lane: int) -> None:
    rank = OneRank()
    rank.call(CollectiveKind.ALLREDUCE, BULK)  # waits for its predecessor, rank 2
    rank.hear(2, frame.goodbye("it is done", [1]))
    rank.dispatcher.lost(StillLane(2, index=lane), reason)
    (error,) = rank.endings
    assert isinstance(error, PeerLost)
    assert str(error) == f"rank 2 is lost: {reason}, after its goodbye, with frames on their way"


def test_a_call_that_waits_for_one_whose_stream_was_cut_fails_at_once() -> None:
    rank = OneRank()
    rank.hear(2, frame.goodbye("it is done", [1]))
    rank.dispatcher.lost(StillLane(2, index=1), EOFError("it closed the connection"))
    rank.call(CollectiveKind.ALLREDUCE, BULK)
    assert [type(error) for error in rank.endings] == [PeerLost]


def test_a_call_that_waits_for_one_that_has_sent_all_it_ever_will_fails_soon() -> None:
    rank = OneRank()
    rank.hear(2, frame.goodbye("it is done", [2]))
    rank.dispatcher.peer_loss.stream_ended(2)
    rank.call(CollectiveKind.ALLREDUCE, BULK)
    assert rank.endings == [], "a third rank may have said already why this one has not sent everything"
    rank.clock.tick(0.5)
    assert [type(error) for error in rank.endings] == [PeerLost]


def test_a_goodbye_does_not_excuse_what_was_wrong_before_it() -> None:
    rank, plan = OneRank(), OneRank().call(CollectiveKind.BARRIER, 0)
    wrong = {"bucket": 5, "hop": 0, "segment": 0, "payload_bytes": 0}
    rank.hear(1, frame.pack_data(epoch=0, collective=1, fingerprint=plan.fingerprint, **wrong))
    rank.hear(1, frame.goodbye("it is done", [1]))
    rank.call(CollectiveKind.BARRIER, 0)
    assert [type(ending) for ending in rank.endings] == [RemoteProtocolError]


def test_a_peer_that_gives_up_call_after_call_may_be_far_ahead() -> None:
    rank = OneRank()
    for number in range(1, 1001):
        rank.hear(1, frame.news(frame.FrameKind.ABORT, "its task was cancelled", collective=number))
    for _ in range(1000):
        rank.call(CollectiveKind.ALLREDUCE, SMALL)
    assert all(isinstance(error, CollectiveAborted) for error in rank.endings)
    assert len(rank.endings) == 1000


def test_what_waits_for_our_calls_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = 10
    monkeypatch.setattr(early_frames, "LIMIT_BYTES_PER_PEER", allowed * (EXPRESS_BYTES + early_frames.FRAME_BYTES))
    rank = OneRank()
    piece = bytes(EXPRESS_BYTES)
    header = {"bucket": 0, "hop": 1, "epoch": 0, "segment": 0, "fingerprint": 5, "payload_bytes": EXPRESS_BYTES}
    for number in range(1, allowed + 1):
        rank.hear(1, frame.pack_data(collective=number, **header) + piece)
    with pytest.raises(RemoteProtocolError, match="rank 1 is too far ahead"):
        rank.hear(1, frame.pack_data(collective=allowed + 1, **header) + piece)


# -- the tree


def given(plan: Plan, hop: int, segment: int = 0) -> bytes:
    return frame.pack_data(
        bucket=0, hop=hop, epoch=0, segment=segment, collective=1, fingerprint=plan.fingerprint, payload_bytes=0
    )


def test_the_root_hears_the_others_in_any_order() -> None:
    for order in ((1, 2), (2, 1)):
        rank = OneRank()
        plan = rank.call(CollectiveKind.ALLREDUCE, 0)
        for peer in order:
            assert rank.endings == []
            rank.hear(peer, given(plan, hop=peer))
        assert rank.endings == [None]


@pytest.mark.parametrize(
    ("rank", "peer", "hop", "segment"),
    [
        (0, 2, 1, 0),  # in the name of rank 1
        (0, 2, 0, 0),
        (0, 2, 3, 0),  # a total, for the one that makes it
        (0, 1, 1, 1),
        (1, 2, 3, 0),  # a total, from one that does not make it
        (1, 2, 2, 0),
        (1, 0, 1, 0),
        (1, 0, 3, 1),
    ],
)
def test_forged_frames_of_a_tree_are_refused(rank: int, peer: int, hop: int, segment: int) -> None:
    one = OneRank(rank=rank)
    plan = one.call(CollectiveKind.ALLREDUCE, 0)
    with pytest.raises(RemoteProtocolError, match=f"rank {peer} sent segment {segment} .* at hop {hop}"):
        one.hear(peer, given(plan, hop, segment))
    assert one.endings == []


@pytest.mark.parametrize("peer", [1, 2])
def test_nobody_gives_twice_to_its_parent(peer: int) -> None:
    rank = OneRank()
    plan = rank.call(CollectiveKind.ALLREDUCE, 0)
    rank.hear(peer, given(plan, hop=peer))
    with pytest.raises(RemoteProtocolError, match="not what comes next"):
        rank.hear(peer, given(plan, hop=peer))


# -- waiting


def waits_in_vain(rank: OneRank) -> None:
    rank.call(CollectiveKind.ALLREDUCE, 0)
    for eighth in range(1, 10):
        rank.clock.tick(eighth / 8)


def test_time_in_which_our_own_loop_stood_still_is_not_waited() -> None:
    rank = OneRank()
    rank.call(CollectiveKind.ALLREDUCE, 0)
    rank.clock.tick(0.125)
    for eighth in range(7):
        rank.clock.tick(50 + eighth / 8)
    assert rank.endings == []
    rank.clock.tick(51.125)
    (error,) = rank.endings
    assert isinstance(error, CollectiveTimeout)


def test_those_who_have_not_called_are_the_ones_it_waits_for() -> None:
    rank = OneRank(rank=1)
    rank.heartbeats.calls[0] = 1  # from whom it waits for numbers, and who waits for rank 2
    waits_in_vain(rank)
    (error,) = rank.endings
    assert isinstance(error, CollectiveTimeout)
    assert error.waiting_for == (2,)
    assert [header.kind for header in rank.links[0].told] == [frame.FrameKind.TIMEOUT]


def test_a_timeout_that_is_set_later_holds_for_what_is_open() -> None:
    rank = OneRank()
    rank.call(CollectiveKind.ALLREDUCE, 0)
    rank.dispatcher.deadlines.set_timeout(3.0)
    for eighth in range(1, 25):
        assert rank.endings == []
        rank.clock.tick(eighth / 8)
    rank.clock.tick(3.125)
    (error,) = rank.endings
    assert isinstance(error, CollectiveTimeout)
    assert "Timed out after no progress for 3 s" in str(error)


def test_if_all_have_called_it_waits_for_those_whose_numbers_are_due() -> None:
    rank = OneRank(rank=1)
    rank.heartbeats.calls = {0: 1, 2: 1}
    waits_in_vain(rank)
    (error,) = rank.endings
    assert isinstance(error, CollectiveTimeout)
    assert error.waiting_for == (0,)


def test_a_deadline_that_another_rank_has_noticed() -> None:
    rank = OneRank()
    rank.call(CollectiveKind.ALLREDUCE, 0)
    rank.hear(1, frame.news(frame.FrameKind.TIMEOUT, "2.5 2", collective=1))
    (error,) = rank.endings
    assert isinstance(error, CollectiveTimeout)
    assert error.waiting_for == (2,)
    assert "no progress for 2.5 s" in str(error)


def test_a_deadline_in_strange_words_is_refused() -> None:
    rank = OneRank()
    rank.call(CollectiveKind.ALLREDUCE, 0)
    with pytest.raises(RemoteProtocolError, match="rank 1 gave up on collective 1 in strange words"):
        rank.hear(1, frame.news(frame.FrameKind.TIMEOUT, "soon 2", collective=1))


def test_signs_of_life_are_asked_for_only_while_something_waits() -> None:
    rank = OneRank()
    rank.call(CollectiveKind.ALLREDUCE, 0)
    rank.clock.tick(0.0)
    assert rank.heartbeats.watched == []
    rank.clock.tick(0.3)
    assert rank.heartbeats.watched == [1]
    rank.hear(1, frame.news(frame.FrameKind.ABORT, "enough", collective=1))
    rank.clock.tick(0.5)
    assert rank.heartbeats.watched == [1, "rest"]


def test_a_silent_rank_is_lost_and_all_are_told() -> None:
    rank = OneRank()
    rank.call(CollectiveKind.ALLREDUCE, BULK)
    rank.dispatcher.peer_loss.silent([2], 10.0)
    (error,) = rank.endings
    assert isinstance(error, PeerLost)
    assert error.rank == 2
    assert "nothing was heard of it for 10 s (suspect_after_seconds)" in str(error)
    assert rank.links[1].words == ["2 0 nothing was heard of it for 10 s (suspect_after_seconds)"]


def test_one_that_hears_of_nobody_does_not_accuse_the_others() -> None:
    rank = OneRank()
    rank.call(CollectiveKind.ALLREDUCE, BULK)
    rank.dispatcher.peer_loss.silent([1, 2], 10.0)
    (error,) = rank.endings
    assert isinstance(error, PeerLost)
    assert "is rank 0 cut off?" in str(error)
    assert rank.links[1].words == ["0 0 it hears of nobody"]


def test_a_loss_is_passed_on_once_to_those_who_cannot_hear_it_from_the_one_who_noticed() -> None:
    rank = OneRank()
    rank.call(CollectiveKind.ALLREDUCE, BULK)
    for _ in range(2):
        rank.hear(1, frame.news(frame.FrameKind.LOST, "2 1 it broke"))
    (error,) = rank.endings
    assert isinstance(error, PeerLost)
    assert (error.rank, error.reason) == (2, "it broke (noticed by rank 1)")
    assert rank.links[2].words == ["2 1 it broke"]


def test_one_that_was_given_up_on_knows_by_whom_whoever_tells_it() -> None:
    rank = OneRank()
    rank.call(CollectiveKind.ALLREDUCE, BULK)
    rank.hear(1, frame.news(frame.FrameKind.LOST, "0 2 silence"))
    (error,) = rank.endings
    assert isinstance(error, PeerLost)
    assert (error.rank, error.reason) == (2, "it has given up on this rank: silence")


@pytest.mark.parametrize("words", ["", "9 9 nobody", "-1 x", "two", f"{10**40} 1 far"])
def test_a_loss_in_strange_words_is_about_the_one_that_tells_it(words: str) -> None:
    rank = OneRank()
    rank.call(CollectiveKind.ALLREDUCE, BULK)
    rank.hear(1, frame.news(frame.FrameKind.LOST, words))
    (error,) = rank.endings
    assert isinstance(error, PeerLost)
    assert error.rank == 1


def test_one_that_is_leaving_lets_its_goodbye_tell_what_it_gave_up() -> None:
    rank = OneRank()
    rank.call(CollectiveKind.ALLREDUCE, BULK)
    rank.dispatcher.abort(rank.dispatcher._open[1], "cancelled", leaving=True)
    assert rank.links[1].told == []
    rank.dispatcher.say_goodbye("enough")
    rank.clock.tick(1.0)
    assert [told.kind for told in rank.links[1].told] == [frame.FrameKind.GOODBYE]
    assert rank.links[1].words[0].endswith("enough")


def test_one_that_does_not_leave_after_all_tells_it_later() -> None:
    rank = OneRank()
    rank.call(CollectiveKind.ALLREDUCE, BULK)
    rank.dispatcher.abort(rank.dispatcher._open[1], "cancelled", leaving=True)
    rank.clock.tick(1.0)
    assert [(told.kind, told.collective) for told in rank.links[1].told] == [(frame.FrameKind.ABORT, 1)]


def test_silence_that_nobody_waits_for_is_no_loss() -> None:
    rank = OneRank()
    rank.dispatcher.peer_loss.silent([2], 10.0)
    assert rank.dispatcher.over is None
    assert rank.links[1].told == []
