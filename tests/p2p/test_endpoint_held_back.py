"""Messages beyond what the receiver keeps: their sender holds them, and what is wanted arrives all the same."""

import itertools
import random
import tracemalloc
from collections import defaultdict
from collections.abc import Callable, Iterable

import pytest

from counted import grows_evenly
from p2p.in_memory import ROOM_FOR_ONE, ROOM_FOR_THREE, SEGMENT_BYTES, InMemoryRanks
from ringwide.errors import PeerLost, RemoteProtocolError
from ringwide.p2p import sender as sending
from ringwide.p2p.transfer import IncomingTransfer, OutgoingTransfer, Transfer
from ringwide.protocol.frame import FrameKind, news, unpack
from ringwide.protocol.p2p import Offer, Space, wanted


def kinds_waiting(ranks: InMemoryRanks, sender: int, receiver: int) -> list[FrameKind]:
    """What has not left yet on this way."""
    return [FrameKind(unpack(header, limit_bytes=64).kind) for header, *_ in ranks.ways[sender, receiver].waiting]


def test_what_is_not_kept_is_held_shown_and_answered_later() -> None:
    ranks = InMemoryRanks(2, kept_limit_bytes=ROOM_FOR_THREE)
    for number in range(5):
        ranks.send(0, 1, bytes([number]), tag=number // 4)
    assert kinds_waiting(ranks, 0, 1) == [FrameKind.OFFER] * 3 + [FrameKind.HELD] * 2  # the first of each tag
    ranks.settle()
    received = ranks.receive(1, 1, tag=1)
    assert kinds_waiting(ranks, 1, 0) == [FrameKind.WANTED]
    ranks.settle()
    assert (ranks.of(received), bytes(received.memory)) == ("done", bytes([4]))


def test_what_is_shown_while_it_is_wanted_is_accepted_at_once() -> None:
    ranks = InMemoryRanks(2, kept_limit_bytes=ROOM_FOR_ONE)
    received = ranks.receive(1, 1, tag=7)
    ranks.send(0, 1, b"!", tag=0)
    ranks.send(0, 1, b"?", tag=7)
    while ranks.ways[0, 1].waiting:
        ranks.ways[0, 1].leave()
    ranks.ways[0, 1].arrive(1 << 30)
    assert kinds_waiting(ranks, 1, 0) == [FrameKind.ACCEPT]
    ranks.settle()
    assert bytes(received.memory) == b"?"


def test_nobody_is_asked_who_has_never_held_anything() -> None:
    ranks = InMemoryRanks(3, kept_limit_bytes=ROOM_FOR_ONE)
    for number in range(3):
        ranks.send(0, 1, bytes([number]), tag=number)
    ranks.settle()
    ranks.receive(1, 1, 2, tag=9)
    ranks.receive(1, 1, tag=9)
    assert (kinds_waiting(ranks, 1, 0), kinds_waiting(ranks, 1, 2)) == ([FrameKind.WANTED], [])


def test_when_there_is_room_again_nothing_is_held_any_more() -> None:
    ranks = InMemoryRanks(2, kept_limit_bytes=ROOM_FOR_THREE)
    for number in range(20):
        ranks.send(0, 1, bytes([number]), tag=number)
    ranks.settle()
    for tag in reversed(range(20)):
        ranks.receive(1, 1, tag=tag)
        ranks.settle()
    for number in range(3):
        ranks.send(0, 1, b"x", tag=number)
    assert kinds_waiting(ranks, 0, 1) == [FrameKind.OFFER] * 3
    assert not ranks.endpoints[0]._transfers.by_peer[1].shown.transfers


def test_a_receive_that_came_too_late_for_what_was_shown_gets_it_when_that_comes_home() -> None:
    """The answer to what was shown waits behind another; the wish of the new receive overtakes it."""
    ranks = InMemoryRanks(2, kept_limit_bytes=ROOM_FOR_ONE)
    for tag in range(3):
        ranks.send(0, 1, bytes([tag]), tag=tag)
        ranks.ways[0, 1].leave()
        ranks.ways[0, 1].arrive(1 << 30)
    assert kinds_waiting(ranks, 1, 0) == [FrameKind.LATER]  # of tag 1; the next is told when this has left
    received = ranks.receive(1, 1, tag=2)
    assert kinds_waiting(ranks, 1, 0) == [FrameKind.LATER, FrameKind.WANTED]
    ranks.settle()
    assert (ranks.of(received), bytes(received.memory)) == ("done", bytes([2]))


def test_one_that_is_shown_and_given_up_is_out_of_the_way() -> None:
    ranks = InMemoryRanks(2, kept_limit_bytes=ROOM_FOR_ONE)
    kept, shown, behind = (ranks.send(0, 1, bytes([number]), tag=5) for number in range(3))
    ranks.endpoints[0].give_up(shown, "")
    ranks.settle()
    received = [ranks.receive(1, 1, tag=5) for _ in range(2)]
    ranks.settle()
    assert [bytes(transfer.memory)[0] for transfer in received] == [0, 2]
    assert [ranks.of(transfer) for transfer in (kept, shown, behind)] == ["done", "open", "done"]
    assert not ranks.endpoints[0].waits


def test_one_that_is_shown_and_does_not_fit_is_a_mismatch_and_the_next_is_shown() -> None:
    ranks = InMemoryRanks(2, kept_limit_bytes=ROOM_FOR_ONE)
    ranks.send(0, 1, b"kept")
    sent = [ranks.send(0, 1, b"ab", tag=1), ranks.send(0, 1, b"abc", tag=1)]
    received = [ranks.receive(1, 3, tag=1), ranks.receive(1, 3, tag=1)]
    ranks.settle()
    assert [ranks.of(transfer) for transfer in (*sent, *received)] == ["MessageMismatch", "done"] * 2


def test_a_receive_without_memory_for_what_is_shown_tells_its_sender() -> None:
    ranks = InMemoryRanks(2, kept_limit_bytes=ROOM_FOR_ONE)
    ranks.send(0, 1, b"kept")
    received = ranks.receive(1, 3, tag=1)
    received.take_memory = lambda: memoryview(bytearray(1 << 62))
    sent = ranks.send(0, 1, b"abc", tag=1)
    ranks.settle()
    assert (ranks.of(sent), ranks.of(received)) == ("CollectiveAborted", "MemoryError")


@pytest.mark.parametrize("full", Space)
def test_messages_leave_exchanges_their_room_and_the_other_way_round(full: Space) -> None:
    ranks = InMemoryRanks(2, kept_limit_bytes=ROOM_FOR_ONE)
    other = Space.EXCHANGES if full == Space.MESSAGES else Space.MESSAGES
    for tag in range(3):
        ranks.send(0, 1, b"x", tag=tag, space=full)
    ranks.settle()
    ranks.send(0, 1, b"y", tag=1, space=other)
    assert kinds_waiting(ranks, 0, 1) == [FrameKind.OFFER]
    received = ranks.receive(1, 1, tag=1, space=other)
    ranks.settle()
    assert bytes(received.memory) == b"y"


def test_what_is_held_ends_with_the_peer_that_leaves_and_with_the_ring() -> None:
    ranks = InMemoryRanks(2, kept_limit_bytes=ROOM_FOR_ONE)
    sent = [ranks.send(0, 1, b"x", tag=tag % 2) for tag in range(6)]
    ranks.settle()
    ranks.say_goodbye(1, to=0)
    assert {ranks.of(transfer) for transfer in sent} == {"PeerLeft"}
    ranks = InMemoryRanks(2, kept_limit_bytes=ROOM_FOR_ONE)
    sent = [ranks.send(0, 1, b"x", tag=tag % 2) for tag in range(6)]
    ranks.fail(0, PeerLost(rank=1, reason="gone"))
    assert {ranks.of(transfer) for transfer in sent} == {"PeerLost"}


# -- any story at all


SIZES = 3, 10 * SEGMENT_BYTES - 1


class Story:
    """Ranks send, receive and give up by chance, while bytes move by chance."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        room = self.chance.choice([ROOM_FOR_ONE, ROOM_FOR_THREE])
        self.ranks = InMemoryRanks(self.chance.choice([2, 3]), kept_limit_bytes=room)
        self.tags = self.chance.choice([2, 4, 10])
        self.sent: list[OutgoingTransfer] = []
        self.received: list[IncomingTransfer] = []
        self.rank_of: dict[Transfer, int] = {}
        self.given_up: set[Transfer] = set()

    def tell(self) -> None:
        """Sends or receives come first in some, in others both are mixed; and bytes move more or less often."""
        weights = [self.chance.choice([1, 4]) for _ in range(2)] + [
            self.chance.choice([0, 1]),
            self.chance.choice([1, 9]),
        ]
        acts = [self._send, self._receive, self._give_up, self._move]
        for act in self.chance.choices(acts, weights, k=self.chance.choice([20, 80])):
            act()
        self.ranks.settle()

    def _rank(self) -> int:
        """Most is sent to rank 0: enough to fill it."""
        return max(0, self.chance.randrange(-3, self.ranks.size))

    def _send(self) -> None:
        to = self._rank()
        sender = self.chance.choice([rank for rank in range(self.ranks.size) if rank != to])
        tag = self.chance.randrange(self.tags)
        transfer = self.ranks.send(sender, to, bytes([len(self.sent)]) * SIZES[tag % 2], tag=tag)
        self.sent.append(transfer)
        self.rank_of[transfer] = sender

    def _receive(self) -> None:
        rank = self._rank()
        source = self.chance.choice([None, *(other for other in range(self.ranks.size) if other != rank)])
        tag = self.chance.randrange(self.tags)
        transfer = self.ranks.receive(rank, SIZES[tag % 2], source, tag=tag)
        self.received.append(transfer)
        self.rank_of[transfer] = rank

    def waiting(self, transfers: list[OutgoingTransfer] | list[IncomingTransfer]) -> list[Transfer]:
        return [
            transfer for transfer in transfers if self.ranks.of(transfer) == "open" and transfer not in self.given_up
        ]

    def _give_up(self) -> None:
        transfers = self.waiting(self.sent) + self.waiting(self.received)
        if transfers:
            transfer = self.chance.choice(transfers)
            self.given_up.add(transfer)
            self.ranks.endpoints[self.rank_of[transfer]].give_up(transfer, "by chance")

    def _move(self) -> None:
        way = self.chance.choice(list(self.ranks.ways.values()))
        if self.chance.random() < 0.5:
            way.leave()
        else:
            way.arrive(self.chance.choice([1, 100, 1000]))


@pytest.mark.parametrize("first", range(0, 1000, 100))
def test_whatever_happens_who_waits_for_each_other_meets_and_in_order(
    first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "LANE_WINDOW", 9)
    for seed in range(first, first + 100):
        story = Story(seed)
        story.tell()
        check(story)


def check(story: Story) -> None:
    ranks, rank_of = story.ranks, story.rank_of
    for one, other in itertools.product(story.waiting(story.sent), story.waiting(story.received)):
        fits = other.source in (None, rank_of[one]) and (one.peer, one.tag) == (rank_of[other], other.tag)
        assert not fits, f"{one} and {other} wait for each other"
    order: dict[object, list[int]] = defaultdict(list)
    for transfer in story.received:  # as they were posted
        if ranks.of(transfer) == "done":
            order[rank_of[transfer], transfer.source, transfer.peer, transfer.tag].append(transfer.memory[0])
            assert (transfer.peer, transfer.tag) == of_number(story, transfer.memory[0])
            assert len(set(transfer.memory)) == 1
    assert all(numbers == sorted(set(numbers)) for numbers in order.values())
    for transfer in (*story.sent, *story.received):
        assert ranks.of(transfer) in ("open", "done", "CollectiveAborted")
    for endpoint in ranks.endpoints:
        for p2p in endpoint._transfers.by_peer.values():
            assert not any([p2p.leaving, p2p.turns, p2p.in_lane, p2p.arriving, p2p.unwanted, p2p.shown.transfers])


def of_number(story: Story, number: int) -> tuple[int, int]:
    return story.rank_of[story.sent[number]], story.sent[number].tag


# -- peers that mean no good


OFFERS: dict[str, Callable[[int], Offer]] = {
    "tags of their own": lambda number: Offer(number, 0, 2**40 + number, 2**50 + number, ""),
    "one tag": lambda number: Offer(number, 0, 0, 2**50 + number, f"float32[{number}]"),
    "long": lambda number: Offer(number, 0, 2**40 + number, 2**50 + number, f"\N{SNOWMAN}{number}" + "a" * 4000),
    "wide": lambda number: Offer(number, 0, 2**40 + number, 2**50 + number, f"\N{BOMB}{number}" + "a" * 4000),
}


@pytest.mark.parametrize("name", OFFERS)
def test_offers_that_nobody_wants_take_no_more_memory_than_is_said(name: str) -> None:
    limit = 2 * 1024 * 1024
    ranks = InMemoryRanks(2, kept_limit_bytes=limit)
    tracemalloc.start()
    try:
        with pytest.raises(RemoteProtocolError, match=f"rank 0 has offered more than the {limit} bytes"):
            feed_all(ranks, (OFFERS[name](number).frame() for number in itertools.count(2, 2)))
        taken = tracemalloc.get_traced_memory()[0]
        assert taken < limit + 100_000
    finally:
        tracemalloc.stop()


def feed(ranks: InMemoryRanks, frame: bytes) -> None:
    """Rank 0 says this to rank 1, and never reads what rank 1 says."""
    ranks.ways[0, 1].pipe += frame
    ranks.ways[0, 1].arrive(1 << 30)


def feed_all(ranks: InMemoryRanks, frames: Iterable[bytes]) -> None:
    for frame in frames:
        feed(ranks, frame)


def test_wishes_for_what_nobody_has_leave_no_trace() -> None:
    ranks = InMemoryRanks(2, kept_limit_bytes=ROOM_FOR_ONE)
    for tag in range(3):
        ranks.send(1, 0, b"x", tag=tag)
    before = len(ranks.ways[1, 0].waiting)
    feed(ranks, wanted(0, 10**6))
    tracemalloc.start()
    try:
        feed_all(ranks, (wanted(tag % 2, tag) for tag in range(20_000)))
        assert tracemalloc.get_traced_memory()[0] < 20_000
    finally:
        tracemalloc.stop()
    assert len(ranks.ways[1, 0].waiting) == before  # what it was shown already has not left yet


def test_what_is_shown_and_not_wanted_leaves_no_trace_and_one_answer() -> None:
    ranks = InMemoryRanks(2)
    feed(ranks, Offer(2, 0, 1, 1, "uint8[1]").frame(kind=FrameKind.HELD))
    tracemalloc.start()
    try:
        frames = (Offer(number, 0, number, 1, "uint8[1]").frame(kind=FrameKind.HELD) for number in range(4, 40_000, 2))
        feed_all(ranks, frames)
        assert tracemalloc.get_traced_memory()[0] < 20_000
    finally:
        tracemalloc.stop()
    assert kinds_waiting(ranks, 1, 0) == [FrameKind.LATER]


def test_what_has_not_left_cannot_be_answered_later() -> None:
    """Else one that does not read could have it shown again and again, each in a frame that waits."""
    ranks = InMemoryRanks(2, kept_limit_bytes=ROOM_FOR_ONE)
    for tag in range(2):
        ranks.send(1, 0, b"x", tag=tag)
    feed(ranks, wanted(0, 1))
    with pytest.raises(RemoteProtocolError, match="rank 0 answers LATER for message 3, which it has not been shown"):
        feed(ranks, news(FrameKind.LATER, "", collective=3))


BAD = {
    "later, of nothing": news(FrameKind.LATER, "", collective=9),
    "later, of number 0": news(FrameKind.LATER, "", collective=0),
    "later, of its own": news(FrameKind.LATER, "", collective=2),
    "a wish without words": news(FrameKind.WANTED, ""),
    "a wish that is too long": news(FrameKind.WANTED, "\0" * 10),
    "a wish in no space": wanted(2, 1),
    "shown out of turn": Offer(6, 0, 0, 1, "uint8[1]").frame(kind=FrameKind.HELD),
    "shown in no space": Offer(4, 2, 0, 1, "uint8[1]").frame(kind=FrameKind.HELD),
    "shown in too few bytes": news(FrameKind.HELD, "short", collective=4),
}


@pytest.mark.parametrize("name", BAD)
def test_what_breaks_the_rules_is_refused(name: str) -> None:
    ranks = InMemoryRanks(2)
    feed(ranks, Offer(2, 0, 0, 1, "uint8[1]").frame())
    with pytest.raises(RemoteProtocolError):
        feed(ranks, BAD[name])


# -- many


def in_reverse(count: int) -> None:
    ranks = InMemoryRanks(2, kept_limit_bytes=ROOM_FOR_THREE)
    for tag in range(count):
        ranks.send(0, 1, b"x", tag=tag)
    ranks.settle()
    for tag in reversed(range(count)):
        ranks.receive(1, 1, 0, tag=tag)
    ranks.settle()
    assert not any(endpoint.waits for endpoint in ranks.endpoints)


def given_up(count: int) -> None:
    ranks = InMemoryRanks(2, kept_limit_bytes=ROOM_FOR_THREE)
    transfers: list[OutgoingTransfer | IncomingTransfer] = [ranks.send(0, 1, b"x", tag=tag) for tag in range(count)]
    ranks.settle()
    for transfer in reversed(transfers):
        ranks.endpoints[0].give_up(transfer, "")
    transfers = [ranks.receive(1, 1, tag=3) for _ in range(count)]
    for transfer in reversed(transfers):
        ranks.endpoints[1].give_up(transfer, "")


def ended(count: int) -> None:
    ranks = InMemoryRanks(2, kept_limit_bytes=ROOM_FOR_THREE)
    for number in range(count):
        ranks.send(0, 1, b"x", tag=number % 7)
        ranks.receive(0, 1)
    ranks.settle()
    ranks.endpoints[0].check_progress(1.0)
    ranks.say_goodbye(1, to=0)


def leaving(count: int) -> None:
    """All are accepted, and none has left when the ring ends."""
    ranks = InMemoryRanks(2)
    for tag in range(count):
        ranks.receive(1, 1000, tag=tag)
        ranks.send(0, 1, bytes(1000), tag=tag)
    while ranks.ways[0, 1].waiting:
        ranks.ways[0, 1].leave()
    ranks.ways[0, 1].arrive(1 << 30)
    while ranks.ways[1, 0].waiting:
        ranks.ways[1, 0].leave()
    ranks.ways[1, 0].arrive(1 << 30)
    for rank in range(2):
        ranks.fail(rank, PeerLost(rank=1 - rank, reason="gone"))
    assert not any(endpoint.waits for endpoint in ranks.endpoints)


@pytest.mark.parametrize("act", [in_reverse, given_up, ended, leaving])
def test_many_take_no_longer_than_they_are_many(act: Callable[[int], None]) -> None:
    assert grows_evenly(act)
