"""Which receive gets which message, against a model that is too slow and too simple to be wrong."""

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counted import grows_evenly
from ringwide.errors import RemoteProtocolError
from ringwide.protocol.frame import HEADER_BYTES, NEWS_LIMIT_BYTES, FrameKind, framed, shown, unpack
from ringwide.protocol.p2p import (
    Matching,
    Offer,
    Offering,
    Space,
    dtype_in,
    kept_bytes,
    numbers_from,
    read_offer,
    read_wanted,
    segments_of,
    wanted,
)

I64 = st.integers(-(2**63), 2**63 - 1)
OFFERS = st.builds(
    Offer,
    number=st.integers(0, 2**64 - 1),
    space=st.sampled_from([int(space) for space in Space]),
    tag=I64,
    nbytes=st.integers(0, 2**64 - 1),
    what=st.text(max_size=30).map(shown),
)


@given(OFFERS, st.integers(0, 2**32 - 1))
def test_an_offer_is_read_as_it_was_written(offer: Offer, epoch: int) -> None:
    frame = offer.frame(epoch)
    header = unpack(frame, limit_bytes=0)
    assert (header.kind, header.epoch, header.payload_bytes) == (FrameKind.OFFER, epoch, len(frame) - HEADER_BYTES)
    assert read_offer(header, memoryview(frame)[HEADER_BYTES:]) == offer


def test_a_shape_that_is_too_long_is_cut_and_its_dtype_is_not() -> None:
    offer = Offer(2, 0, 0, 1, f"float32{[1] * 5000}")
    frame = offer.frame()
    assert len(frame) == HEADER_BYTES + NEWS_LIMIT_BYTES
    assert dtype_in(read_offer(unpack(frame, limit_bytes=0), frame[HEADER_BYTES:]).what) == "float32"


@given(st.binary(max_size=100))
def test_any_bytes_are_an_offer_or_a_protocol_error(payload: bytes) -> None:
    header = unpack(framed(FrameKind.OFFER, payload, collective=4), limit_bytes=0)
    try:
        offer = read_offer(header, payload)
    except RemoteProtocolError:
        return
    assert (offer.number, offer.space) == (4, payload[0])


@pytest.mark.parametrize("nbytes", [0, 16])
def test_an_offer_that_ends_too_early_is_refused(nbytes: int) -> None:
    header = unpack(framed(FrameKind.OFFER, bytes(nbytes)), limit_bytes=0)
    with pytest.raises(RemoteProtocolError, match=f"an offer of {nbytes} bytes"):
        read_offer(header, bytes(nbytes))


@given(st.sampled_from([int(space) for space in Space]), I64, st.integers(0, 2**32 - 1))
def test_a_wish_is_read_as_it_was_written(space: int, tag: int, epoch: int) -> None:
    frame = wanted(space, tag, epoch)
    header = unpack(frame, limit_bytes=0)
    assert (header.kind, header.epoch) == (FrameKind.WANTED, epoch)
    assert read_wanted(memoryview(frame)[HEADER_BYTES:]) == (space, tag)


@given(st.binary(max_size=12))
def test_any_bytes_are_a_wish_or_a_protocol_error(payload: bytes) -> None:
    try:
        space, _ = read_wanted(payload)
    except RemoteProtocolError:
        return
    assert space == payload[0]


@pytest.mark.parametrize("payload", [b"", bytes(8), bytes(10), bytes([len(Space)]) + bytes(8)])
def test_an_impossible_wish_is_refused(payload: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        read_wanted(payload)


@pytest.mark.parametrize(("nbytes", "segments"), [(0, 0), (1, 1), (64, 1), (65, 2), (128, 2)])
def test_how_many_segments(nbytes: int, segments: int) -> None:
    assert segments_of(nbytes, 64) == segments


def test_two_ranks_never_use_the_same_number() -> None:
    ours, theirs = numbers_from(3, 7), numbers_from(7, 3)
    assert not {next(ours) for _ in range(50)} & {next(theirs) for _ in range(50)}


class Model:
    """Two lists. What fits is looked for from the beginning."""

    def __init__(self) -> None:
        self.offers: list[tuple[int, Offer]] = []
        self.receives: list[tuple[int, int | None, int, int]] = []

    def offered(self, peer: int, offer: Offer) -> int | None:
        for entry in self.receives:
            if entry[1] in (None, peer) and entry[2:] == (offer.space, offer.tag):
                self.receives.remove(entry)
                return entry[0]
        self.offers.append((peer, offer))
        return None

    def posted(self, receive: int, source: int | None, space: int, tag: int) -> tuple[int, Offer] | None:
        for entry in self.offers:
            if source in (None, entry[0]) and (entry[1].space, entry[1].tag) == (space, tag):
                self.offers.remove(entry)
                return entry
        self.receives.append((receive, source, space, tag))
        return None


ACTS = st.lists(
    st.tuples(
        st.sampled_from(["offer", "post", "withdraw", "cancel", "left"]),
        st.integers(0, 2),  # a rank
        st.booleans(),  # from anybody?
        st.integers(0, 1),  # a space
        st.integers(0, 1),  # a tag
        st.integers(0, 40),  # which one to withdraw or to cancel
    ),
    max_size=40,
)


@given(ACTS)
def test_receives_get_what_a_simple_model_says(acts: list[tuple[str, int, bool, int, int, int]]) -> None:
    matching: Matching[int] = Matching()
    model = Model()
    for number, (act, peer, anybody, space, tag, which) in enumerate(acts):
        if act == "offer":
            offer = Offer(number, space, tag, 1, "uint8[1]")
            assert matching.offered(peer, offer) == model.offered(peer, offer)
        elif act == "post":
            arguments = number, None if anybody else peer, space, tag
            assert matching.posted(*arguments) == model.posted(*arguments)
        elif act == "withdraw":
            known = [(sender, offer.number) for sender, offer in model.offers]
            withdrawn = known[which % len(known)] if known and which else (peer, which)
            model.offers = [entry for entry in model.offers if (entry[0], entry[1].number) != withdrawn]
            assert matching.withdrawn(*withdrawn) == (withdrawn in known)
        elif act == "cancel":
            stranger = which, None if anybody else peer, space, tag
            gone = model.receives[which % len(model.receives)] if model.receives and which else stranger
            assert matching.cancelled(*gone) == (gone in model.receives)
            model.receives = [entry for entry in model.receives if entry != gone]
        else:
            model.offers = [entry for entry in model.offers if entry[0] != peer]
            matching.left(peer)
        for rank, space in itertools.product(range(3), Space):
            kept = [kept_bytes(offer.what) for sender, offer in model.offers if (sender, offer.space) == (rank, space)]
            assert matching.kept_of(rank, space) == sum(kept)


def receives_that_others_stand_before(count: int) -> None:
    matching: Matching[int] = Matching()
    for number in range(count):
        assert matching.posted(number, 2, 0, 0) is None
    for number in range(count):
        assert matching.offered(1, Offer(number, 0, 0, 1, "")) is None
    for number in range(count):
        assert matching.posted(count + number, 1, 0, 0) == (1, Offer(number, 0, 0, 1, ""))
    for number in reversed(range(count)):
        assert matching.cancelled(number, 2, 0, 0)


def offers_that_others_stand_before(count: int) -> None:
    matching: Matching[int] = Matching()
    for number in range(count):
        assert matching.offered(2, Offer(number, 0, 0, 1, "")) is None
    for number in range(count):
        assert matching.posted(number, 1, 0, 0) is None
    for number in range(count):
        assert matching.offered(1, Offer(number, 0, 0, 1, "")) == number
    for number in reversed(range(count)):
        assert matching.withdrawn(2, number)


@pytest.mark.parametrize("act", [receives_that_others_stand_before, offers_that_others_stand_before])
def test_nothing_is_looked_for_among_many(act: Callable[[int], None]) -> None:
    assert grows_evenly(act)


# -- what is offered, and what waits at home

ROOM = 5


class Sender:
    """Says all that there is to say after every act, and holds that against the rules of `Offering`."""

    def __init__(self) -> None:
        self.offering: Offering[int] = Offering(ROOM)
        self.numbers = itertools.count()
        self.held: dict[int, tuple[int, int]] = {}  # tag and bytes, in the order of sending
        self.offered: dict[int, int] = {}
        self.shown: dict[int, int] = {}  # by tag
        self.may_show: dict[int, int] = {}  # how often the first of a tag may be shown
        self.said: list[tuple[int, FrameKind]] = []

    def first_of(self, tag: int) -> int | None:
        return next((message for message, (its_tag, _) in self.held.items() if its_tag == tag), None)

    def act(self, act: str, tag: int, nbytes: int, choice: int) -> None:
        firsts = {tag: self.first_of(tag) for tag in range(3)}
        match act:
            case "send":
                message = next(self.numbers)
                self.held[message] = tag, nbytes
                self.offering.add(message, tag, nbytes)
            case "end" if self.held or self.offered:
                all_of_them = [*self.held, *self.offered]
                self.end(all_of_them[choice % len(all_of_them)])
            case "put off" if tag in self.shown:
                self.offering.postponed(self.shown.pop(tag))
            case "want":
                self.may_show[tag] = self.may_show.get(tag, 0) + 1
                self.offering.wanted(tag)
        self.note_new_firsts(firsts)
        self.say_all()

    def end(self, message: int) -> None:
        self.offering.gone(message)
        self.offered.pop(message, None)
        tag, _ = self.held.pop(message, (None, 0))
        if tag is not None and self.shown.get(tag) == message:
            del self.shown[tag]

    def note_new_firsts(self, before: dict[int, int | None]) -> None:
        for tag, first in before.items():
            if self.first_of(tag) != first:
                self.may_show[tag] = self.may_show.get(tag, 0) + 1

    def say_all(self) -> None:
        while (said := self.offering.next()) is not None:
            self.said.append(said)
            message, kind = said
            tag, nbytes = self.held[message]
            assert message == self.first_of(tag), "the order of a tag"
            assert self.shown.get(tag) != message, "what is shown stays where it is"
            if kind == FrameKind.OFFER:
                assert message == next(iter(self.held)), "the order of sending"
                assert sum(self.offered.values()) < ROOM
                firsts = {tag: self.first_of(tag)}
                self.offered[message] = nbytes
                del self.held[message]
                self.note_new_firsts(firsts)
            else:
                assert kind == FrameKind.HELD
                self.may_show[tag] -= 1
                assert self.may_show[tag] >= 0, "shown more often than there was a reason for"
                self.shown[tag] = message
        if self.held and sum(self.offered.values()) < ROOM:
            assert next(iter(self.held)) in self.shown.values(), "there is room, and it is not used"


acts = st.tuples(
    st.sampled_from(["send", "send", "end", "put off", "want"]),
    st.integers(0, 2),
    st.integers(1, 6),
    st.integers(0, 100),
)


@given(st.lists(acts, min_size=10, max_size=60))
def test_what_is_offered_and_shown_keeps_to_the_rules(acts: list[tuple[str, int, int, int]]) -> None:
    sender = Sender()
    for act in acts:
        sender.act(*act)


def test_what_there_is_no_room_for_is_shown_and_offered_when_there_is_room() -> None:
    sender = Sender()
    for tag in (0, 1, 1):
        sender.act("send", tag, ROOM, 0)
    assert sender.said == [(0, FrameKind.OFFER), (1, FrameKind.HELD)]
    sender.act("put off", 1, 0, 0)
    sender.act("end", 0, 0, 2)  # the one that was offered
    assert sender.said[2:] == [(1, FrameKind.OFFER), (2, FrameKind.HELD)]


def test_what_is_wanted_while_it_is_shown_is_shown_again() -> None:
    sender = Sender()
    sender.act("send", 0, ROOM, 0)
    sender.act("send", 1, 1, 0)
    sender.act("want", 1, 0, 0)
    assert sender.said == [(0, FrameKind.OFFER), (1, FrameKind.HELD)]
    sender.act("put off", 1, 0, 0)
    assert sender.said[2:] == [(1, FrameKind.HELD)]
    sender.act("put off", 1, 0, 0)
    assert sender.said[3:] == []
    sender.act("want", 1, 0, 0)
    assert sender.said[3:] == [(1, FrameKind.HELD)]
    sender.act("want", 2, 0, 0)  # of which there is nothing
    assert sender.said[4:] == []


def test_what_is_given_up_at_home_makes_way_for_the_next() -> None:
    sender = Sender()
    for tag in (0, 1, 1, 1):
        sender.act("send", tag, ROOM, 0)
    assert sender.said == [(0, FrameKind.OFFER), (1, FrameKind.HELD)]
    sender.act("end", 0, 0, 1)  # message 2, which nobody has seen
    assert sender.said[2:] == []
    sender.act("want", 1, 0, 0)
    sender.act("end", 0, 0, 0)  # message 1, which is shown
    assert sender.said[2:] == [(3, FrameKind.HELD)]


def test_what_is_shown_is_not_offered_before_it_is_answered() -> None:
    sender = Sender()
    for tag in (0, 1):
        sender.act("send", tag, ROOM, 0)
    sender.act("end", 0, 0, 1)  # message 0: now there is room
    assert sender.said == [(0, FrameKind.OFFER), (1, FrameKind.HELD)]
    sender.act("put off", 1, 0, 0)
    assert sender.said[2:] == [(1, FrameKind.OFFER)]
