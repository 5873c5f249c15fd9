"""Messages beyond what the other end keeps: they wait at home, and what is wanted arrives all the same."""

import itertools
import random
import tracemalloc
from collections import defaultdict
from collections.abc import Callable, Iterable

import pytest

from counted import grows_evenly
from p2p.post import ROOM_FOR_ONE, ROOM_FOR_THREE, SEGMENT_BYTES, Town
from ringwide.errors import PeerLost, RemoteProtocolError
from ringwide.p2p import sender as sending
from ringwide.p2p.transfer import IncomingTransfer, OutgoingTransfer, Transfer
from ringwide.protocol.frame import FrameKind, news, unpack
from ringwide.protocol.p2p import Offer, Space, wanted


def kinds_waiting(town: Town, sender: int, receiver: int) -> list[FrameKind]:
    """What has not left yet on this way."""
    return [FrameKind(unpack(header, limit_bytes=64).kind) for header, *_ in town.ways[sender, receiver].waiting]


def test_what_is_not_kept_is_held_shown_and_put_off() -> None:
    town = Town(2, kept_limit_bytes=ROOM_FOR_THREE)
    for number in range(5):
        town.send(0, 1, bytes([number]), tag=number // 4)
    assert kinds_waiting(town, 0, 1) == [FrameKind.OFFER] * 3 + [FrameKind.HELD] * 2  # the first of each tag
    town.settle()
    received = town.receive(1, 1, tag=1)
    assert kinds_waiting(town, 1, 0) == [FrameKind.WANTED]
    town.settle()
    assert (town.of(received), bytes(received.memory)) == ("done", bytes([4]))


def test_what_is_shown_while_it_is_wanted_is_accepted_at_once() -> None:
    town = Town(2, kept_limit_bytes=ROOM_FOR_ONE)
    received = town.receive(1, 1, tag=7)
    town.send(0, 1, b"!", tag=0)
    town.send(0, 1, b"?", tag=7)
    while town.ways[0, 1].waiting:
        town.ways[0, 1].leave()
    town.ways[0, 1].arrive(1 << 30)
    assert kinds_waiting(town, 1, 0) == [FrameKind.ACCEPT]
    town.settle()
    assert bytes(received.memory) == b"?"


def test_nobody_is_asked_who_has_never_held_anything() -> None:
    town = Town(3, kept_limit_bytes=ROOM_FOR_ONE)
    for number in range(3):
        town.send(0, 1, bytes([number]), tag=number)
    town.settle()
    town.receive(1, 1, 2, tag=9)
    town.receive(1, 1, tag=9)
    assert (kinds_waiting(town, 1, 0), kinds_waiting(town, 1, 2)) == ([FrameKind.WANTED], [])


def test_when_there_is_room_again_nothing_is_held_any_more() -> None:
    town = Town(2, kept_limit_bytes=ROOM_FOR_THREE)
    for number in range(20):
        town.send(0, 1, bytes([number]), tag=number)
    town.settle()
    for tag in reversed(range(20)):
        town.receive(1, 1, tag=tag)
        town.settle()
    for number in range(3):
        town.send(0, 1, b"x", tag=number)
    assert kinds_waiting(town, 0, 1) == [FrameKind.OFFER] * 3
    assert not town.offices[0]._desk.p2p_with[1].shown.transfers


def test_a_receive_that_came_too_late_for_what_was_shown_gets_it_when_that_comes_home() -> None:
    """The answer to what was shown waits behind another; the wish of the new receive overtakes it."""
    town = Town(2, kept_limit_bytes=ROOM_FOR_ONE)
    for tag in range(3):
        town.send(0, 1, bytes([tag]), tag=tag)
        town.ways[0, 1].leave()
        town.ways[0, 1].arrive(1 << 30)
    assert kinds_waiting(town, 1, 0) == [FrameKind.LATER]  # of tag 1; the next is told when this has left
    received = town.receive(1, 1, tag=2)
    assert kinds_waiting(town, 1, 0) == [FrameKind.LATER, FrameKind.WANTED]
    town.settle()
    assert (town.of(received), bytes(received.memory)) == ("done", bytes([2]))


def test_one_that_is_shown_and_given_up_is_out_of_the_way() -> None:
    town = Town(2, kept_limit_bytes=ROOM_FOR_ONE)
    kept, shown, behind = (town.send(0, 1, bytes([number]), tag=5) for number in range(3))
    town.offices[0].give_up(shown, "")
    town.settle()
    received = [town.receive(1, 1, tag=5) for _ in range(2)]
    town.settle()
    assert [bytes(transfer.memory)[0] for transfer in received] == [0, 2]
    assert [town.of(transfer) for transfer in (kept, shown, behind)] == ["done", "open", "done"]
    assert not town.offices[0].waits


def test_one_that_is_shown_and_does_not_fit_is_a_mismatch_and_the_next_is_shown() -> None:
    town = Town(2, kept_limit_bytes=ROOM_FOR_ONE)
    town.send(0, 1, b"kept")
    sent = [town.send(0, 1, b"ab", tag=1), town.send(0, 1, b"abc", tag=1)]
    received = [town.receive(1, 3, tag=1), town.receive(1, 3, tag=1)]
    town.settle()
    assert [town.of(transfer) for transfer in (*sent, *received)] == ["MessageMismatch", "done"] * 2


def test_a_receive_without_memory_for_what_is_shown_tells_its_sender() -> None:
    town = Town(2, kept_limit_bytes=ROOM_FOR_ONE)
    town.send(0, 1, b"kept")
    received = town.receive(1, 3, tag=1)
    received.take_memory = lambda: memoryview(bytearray(1 << 62))
    sent = town.send(0, 1, b"abc", tag=1)
    town.settle()
    assert (town.of(sent), town.of(received)) == ("CollectiveAborted", "MemoryError")


@pytest.mark.parametrize("full", Space)
def test_messages_leave_exchanges_their_room_and_the_other_way_round(full: Space) -> None:
    town = Town(2, kept_limit_bytes=ROOM_FOR_ONE)
    other = Space.EXCHANGES if full == Space.MESSAGES else Space.MESSAGES
    for tag in range(3):
        town.send(0, 1, b"x", tag=tag, space=full)
    town.settle()
    town.send(0, 1, b"y", tag=1, space=other)
    assert kinds_waiting(town, 0, 1) == [FrameKind.OFFER]
    received = town.receive(1, 1, tag=1, space=other)
    town.settle()
    assert bytes(received.memory) == b"y"


def test_what_is_held_ends_with_the_peer_that_leaves_and_with_the_ring() -> None:
    town = Town(2, kept_limit_bytes=ROOM_FOR_ONE)
    sent = [town.send(0, 1, b"x", tag=tag % 2) for tag in range(6)]
    town.settle()
    town.say_goodbye(1, to=0)
    assert {town.of(transfer) for transfer in sent} == {"PeerLeft"}
    town = Town(2, kept_limit_bytes=ROOM_FOR_ONE)
    sent = [town.send(0, 1, b"x", tag=tag % 2) for tag in range(6)]
    town.fail(0, PeerLost(rank=1, reason="gone"))
    assert {town.of(transfer) for transfer in sent} == {"PeerLost"}


# -- any story at all


SIZES = 3, 10 * SEGMENT_BYTES - 1


class Story:
    """Ranks send, receive and give up by chance, while bytes move by chance."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        room = self.chance.choice([ROOM_FOR_ONE, ROOM_FOR_THREE])
        self.town = Town(self.chance.choice([2, 3]), kept_limit_bytes=room)
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
        self.town.settle()

    def _rank(self) -> int:
        """Most is sent to rank 0: enough to fill it."""
        return max(0, self.chance.randrange(-3, self.town.size))

    def _send(self) -> None:
        to = self._rank()
        sender = self.chance.choice([rank for rank in range(self.town.size) if rank != to])
        tag = self.chance.randrange(self.tags)
        transfer = self.town.send(sender, to, bytes([len(self.sent)]) * SIZES[tag % 2], tag=tag)
        self.sent.append(transfer)
        self.rank_of[transfer] = sender

    def _receive(self) -> None:
        rank = self._rank()
        source = self.chance.choice([None, *(other for other in range(self.town.size) if other != rank)])
        tag = self.chance.randrange(self.tags)
        transfer = self.town.receive(rank, SIZES[tag % 2], source, tag=tag)
        self.received.append(transfer)
        self.rank_of[transfer] = rank

    def waiting(self, transfers: list[OutgoingTransfer] | list[IncomingTransfer]) -> list[Transfer]:
        return [
            transfer for transfer in transfers if self.town.of(transfer) == "open" and transfer not in self.given_up
        ]

    def _give_up(self) -> None:
        transfers = self.waiting(self.sent) + self.waiting(self.received)
        if transfers:
            transfer = self.chance.choice(transfers)
            self.given_up.add(transfer)
            self.town.offices[self.rank_of[transfer]].give_up(transfer, "by chance")

    def _move(self) -> None:
        way = self.chance.choice(list(self.town.ways.values()))
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
    town, rank_of = story.town, story.rank_of
    for one, other in itertools.product(story.waiting(story.sent), story.waiting(story.received)):
        fits = other.source in (None, rank_of[one]) and (one.peer, one.tag) == (rank_of[other], other.tag)
        assert not fits, f"{one} and {other} wait for each other"
    order: dict[object, list[int]] = defaultdict(list)
    for transfer in story.received:  # as they were posted
        if town.of(transfer) == "done":
            order[rank_of[transfer], transfer.source, transfer.peer, transfer.tag].append(transfer.memory[0])
            assert (transfer.peer, transfer.tag) == of_number(story, transfer.memory[0])
            assert len(set(transfer.memory)) == 1
    assert all(numbers == sorted(set(numbers)) for numbers in order.values())
    for transfer in (*story.sent, *story.received):
        assert town.of(transfer) in ("open", "done", "CollectiveAborted")
    for endpoint in town.offices:
        for p2p in endpoint._desk.p2p_with.values():
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
    town = Town(2, kept_limit_bytes=limit)
    tracemalloc.start()
    try:
        with pytest.raises(RemoteProtocolError, match=f"rank 0 has offered more than the {limit} bytes"):
            feed_all(town, (OFFERS[name](number).frame() for number in itertools.count(2, 2)))
        taken = tracemalloc.get_traced_memory()[0]
        assert taken < limit + 100_000
    finally:
        tracemalloc.stop()


def feed(town: Town, frame: bytes) -> None:
    """Rank 0 says this to rank 1, and never reads what rank 1 says."""
    town.ways[0, 1].pipe += frame
    town.ways[0, 1].arrive(1 << 30)


def feed_all(town: Town, frames: Iterable[bytes]) -> None:
    for frame in frames:
        feed(town, frame)


def test_wishes_for_what_nobody_has_leave_no_trace() -> None:
    town = Town(2, kept_limit_bytes=ROOM_FOR_ONE)
    for tag in range(3):
        town.send(1, 0, b"x", tag=tag)
    before = len(town.ways[1, 0].waiting)
    feed(town, wanted(0, 10**6))
    tracemalloc.start()
    try:
        feed_all(town, (wanted(tag % 2, tag) for tag in range(20_000)))
        assert tracemalloc.get_traced_memory()[0] < 20_000
    finally:
        tracemalloc.stop()
    assert len(town.ways[1, 0].waiting) == before  # what it was shown already has not left yet


def test_what_is_shown_and_not_wanted_leaves_no_trace_and_one_answer() -> None:
    town = Town(2)
    feed(town, Offer(2, 0, 1, 1, "uint8[1]").frame(kind=FrameKind.HELD))
    tracemalloc.start()
    try:
        frames = (Offer(number, 0, number, 1, "uint8[1]").frame(kind=FrameKind.HELD) for number in range(4, 40_000, 2))
        feed_all(town, frames)
        assert tracemalloc.get_traced_memory()[0] < 20_000
    finally:
        tracemalloc.stop()
    assert kinds_waiting(town, 1, 0) == [FrameKind.LATER]


def test_what_has_not_left_cannot_be_put_off() -> None:
    """Else one that does not read could have it shown again and again, each in a frame that waits."""
    town = Town(2, kept_limit_bytes=ROOM_FOR_ONE)
    for tag in range(2):
        town.send(1, 0, b"x", tag=tag)
    feed(town, wanted(0, 1))
    with pytest.raises(RemoteProtocolError, match="rank 0 puts off message 3, which it has not been shown"):
        feed(town, news(FrameKind.LATER, "", collective=3))


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
    town = Town(2)
    feed(town, Offer(2, 0, 0, 1, "uint8[1]").frame())
    with pytest.raises(RemoteProtocolError):
        feed(town, BAD[name])


# -- many


def in_reverse(count: int) -> None:
    town = Town(2, kept_limit_bytes=ROOM_FOR_THREE)
    for tag in range(count):
        town.send(0, 1, b"x", tag=tag)
    town.settle()
    for tag in reversed(range(count)):
        town.receive(1, 1, 0, tag=tag)
    town.settle()
    assert not any(endpoint.waits for endpoint in town.offices)


def given_up(count: int) -> None:
    town = Town(2, kept_limit_bytes=ROOM_FOR_THREE)
    transfers: list[OutgoingTransfer | IncomingTransfer] = [town.send(0, 1, b"x", tag=tag) for tag in range(count)]
    town.settle()
    for transfer in reversed(transfers):
        town.offices[0].give_up(transfer, "")
    transfers = [town.receive(1, 1, tag=3) for _ in range(count)]
    for transfer in reversed(transfers):
        town.offices[1].give_up(transfer, "")


def ended(count: int) -> None:
    town = Town(2, kept_limit_bytes=ROOM_FOR_THREE)
    for number in range(count):
        town.send(0, 1, b"x", tag=number % 7)
        town.receive(0, 1)
    town.settle()
    town.offices[0].check_progress(1.0)
    town.say_goodbye(1, to=0)


def leaving(count: int) -> None:
    """All are accepted, and none has left when the ring ends."""
    town = Town(2)
    for tag in range(count):
        town.receive(1, 1000, tag=tag)
        town.send(0, 1, bytes(1000), tag=tag)
    while town.ways[0, 1].waiting:
        town.ways[0, 1].leave()
    town.ways[0, 1].arrive(1 << 30)
    while town.ways[1, 0].waiting:
        town.ways[1, 0].leave()
    town.ways[1, 0].arrive(1 << 30)
    for rank in range(2):
        town.fail(rank, PeerLost(rank=1 - rank, reason="gone"))
    assert not any(endpoint.waits for endpoint in town.offices)


@pytest.mark.parametrize("act", [in_reverse, given_up, ended, leaving])
def test_many_take_no_longer_than_they_are_many(act: Callable[[int], None]) -> None:
    assert grows_evenly(act)
