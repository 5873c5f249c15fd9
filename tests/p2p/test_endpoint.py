"""Endpoints whose every byte is moved by hand: the effect of each frame, in whatever order things happen."""

import itertools
import logging
import struct
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DataObject

from p2p.in_memory import ROOM_FOR_ONE, ROOM_FOR_THREE, SEGMENT_BYTES, InMemoryRanks
from ringwide.errors import (
    CollectiveAborted,
    CollectiveTimeout,
    MessageMismatch,
    PeerLost,
    RemoteProtocolError,
    RingClosed,
)
from ringwide.p2p import sender
from ringwide.p2p.transfer import IncomingTransfer, OutgoingTransfer, Transfer
from ringwide.protocol.frame import HEADER_BYTES, FrameKind, framed, news, pack_data, unpack
from ringwide.protocol.p2p import KEPT_LIMIT_BYTES, Offer, Space

LONG = bytes(range(256)) * 10


def data_frame(number: int, segment: int, payload: bytes, **fields: int) -> bytes:
    header = {"bucket": 0, "hop": 0, "epoch": 0, "fingerprint": 0, "codec": 0, **fields}
    return pack_data(segment=segment, collective=number, payload_bytes=len(payload), **header) + payload


@pytest.mark.parametrize("nbytes", [0, 1, 40, SEGMENT_BYTES, SEGMENT_BYTES + 1, len(LONG)])
@pytest.mark.parametrize("first", ["send", "receive"])
def test_a_message_arrives_whoever_comes_first(nbytes: int, first: str) -> None:
    ranks = InMemoryRanks(2)
    if first == "send":
        sent = ranks.send(1, 0, LONG[:nbytes])
        ranks.settle()
        assert ranks.of(sent) == "open"  # nobody has accepted it
        received = ranks.receive(0, nbytes)
    else:
        received = ranks.receive(0, nbytes, 1)
        sent = ranks.send(1, 0, LONG[:nbytes])
    ranks.settle()
    assert (ranks.of(sent), ranks.of(received), bytes(received.memory)) == ("done", "done", LONG[:nbytes])
    assert received.peer == 1
    assert not any(endpoint.waits for endpoint in ranks.endpoints)


def test_nothing_is_accepted_before_it_is_wanted_and_nothing_sent_before_it_is_accepted() -> None:
    ranks = InMemoryRanks(2)
    ranks.send(0, 1, LONG)
    ranks.ways[0, 1].leave()
    assert len(ranks.ways[0, 1].pipe) < len(LONG)
    ranks.settle()
    assert not ranks.ways[1, 0].waiting


def test_a_message_is_done_when_its_last_byte_has_left() -> None:
    ranks = InMemoryRanks(2)
    ranks.receive(1, len(LONG))
    sent = ranks.send(0, 1, LONG)
    way = ranks.ways[0, 1]
    way.leave()
    way.arrive(1 << 30)
    ranks.ways[1, 0].leave()
    ranks.ways[1, 0].arrive(1 << 30)
    while way.waiting:
        assert len(way.waiting) <= sender.WINDOW
        assert ranks.of(sent) == "open"
        way.leave()
    assert ranks.of(sent) == "done"


def test_messages_that_leave_at_once_take_turns_and_do_not_fill_the_lane() -> None:
    ranks = InMemoryRanks(2)
    for tag in range(100):
        ranks.receive(1, len(LONG), tag=tag)
    ranks.settle()
    sent = [ranks.send(0, 1, LONG, tag=tag) for tag in range(100)]
    way, back = ranks.ways[0, 1], ranks.ways[1, 0]
    for _ in range(100):
        way.leave()
    way.arrive(1 << 30)
    for _ in range(100):
        back.leave()
    back.arrive(1 << 30)
    order = []
    while way.waiting:
        assert len(way.waiting) <= sender.LANE_WINDOW
        order.append(unpack(way.waiting[0][0], limit_bytes=SEGMENT_BYTES).collective)
        way.leave()
    assert len(set(order[-100:])) > 80  # nearly all leave to the end; before others came, a few had more turns
    assert {ranks.of(transfer) for transfer in sent} == {"done"}


def test_an_exchange_is_no_message() -> None:
    ranks = InMemoryRanks(2)
    other = ranks.receive(0, 1, 1, tag=7, space=Space.EXCHANGES)
    sent = ranks.send(1, 0, b"!", tag=7)
    ranks.settle()
    assert (ranks.of(other), ranks.of(sent)) == ("open", "open")
    mine = ranks.receive(0, 1, tag=7)
    ranks.settle()
    assert (ranks.of(other), ranks.of(sent), ranks.of(mine)) == ("open", "done", "done")


# -- giving up


def half_way(ranks: InMemoryRanks) -> tuple[OutgoingTransfer, IncomingTransfer]:
    """A message of which a part has arrived, the next in the middle of a segment."""
    received, sent = ranks.receive(1, len(LONG)), ranks.send(0, 1, LONG)
    ranks.ways[0, 1].leave()
    ranks.ways[0, 1].arrive(1 << 30)
    ranks.ways[1, 0].leave()
    ranks.ways[1, 0].arrive(1 << 30)
    for _ in range(4):
        ranks.ways[0, 1].leave()
    ranks.ways[0, 1].arrive(2 * (HEADER_BYTES + SEGMENT_BYTES) + HEADER_BYTES + 10)
    return sent, received


def test_who_gives_up_hears_no_more_and_the_other_hears_why() -> None:
    for gives_up in range(2):
        ranks = InMemoryRanks(2)
        transfers = half_way(ranks)
        ours, theirs = transfers[gives_up], transfers[1 - gives_up]
        before = bytes(transfers[1].memory)
        ranks.endpoints[gives_up].give_up(ours, "it is tired")
        ranks.settle()
        assert (ranks.of(ours), ranks.of(theirs)) == ("open", "CollectiveAborted")
        error = ranks.error(theirs)
        assert isinstance(error, CollectiveAborted)
        assert (error.by, error.reason) == (gives_up, "it is tired")
        if gives_up == 1:
            assert bytes(transfers[1].memory) == before  # nothing lands in it any more
        assert not ranks.endpoints[1]._transfers.by_peer[0].unwanted  # and both know that nothing more will come
        assert not any(endpoint.waits for endpoint in ranks.endpoints)
        again, sent = ranks.receive(1, len(LONG)), ranks.send(0, 1, LONG)
        ranks.settle()
        assert (ranks.of(again), ranks.of(sent), bytes(again.memory)) == ("done", "done", LONG)


def test_both_may_give_up_at_once() -> None:
    ranks = InMemoryRanks(2)
    sent, received = half_way(ranks)
    ranks.endpoints[0].give_up(sent, "")
    ranks.endpoints[1].give_up(received, "")
    ranks.settle()
    assert not ranks.endpoints[1]._transfers.by_peer[0].unwanted
    assert (ranks.of(sent), ranks.of(received)) == ("open", "open")


def test_a_receiver_that_gives_up_when_all_has_left_troubles_nobody() -> None:
    ranks = InMemoryRanks(2)
    received, sent = ranks.receive(1, 10), ranks.send(0, 1, LONG[:10])
    ranks.ways[0, 1].leave()
    ranks.ways[0, 1].arrive(1 << 30)
    ranks.ways[1, 0].leave()
    ranks.ways[1, 0].arrive(1 << 30)
    ranks.ways[0, 1].leave()
    ranks.endpoints[1].give_up(received, "")
    ranks.settle()
    assert ranks.of(sent) == "done"
    assert not ranks.endpoints[1]._transfers.by_peer[0].unwanted


def test_an_acceptance_may_cross_the_withdrawal() -> None:
    ranks = InMemoryRanks(2)
    sent = ranks.send(0, 1, LONG)
    ranks.settle()
    received = ranks.receive(1, len(LONG))
    ranks.endpoints[0].give_up(sent, "too late")
    ranks.settle()
    assert ranks.of(received) == "CollectiveAborted"


def test_one_that_leaves_lets_its_goodbye_tell() -> None:
    ranks = InMemoryRanks(2)
    sent, received = half_way(ranks)
    ranks.endpoints[0].give_up(sent, "its task was cancelled", leaving=True)
    ranks.settle()
    assert ranks.of(received) == "open"
    ranks.clock.later[0]()  # it has not left after all
    ranks.settle()
    assert ranks.of(received) == "CollectiveAborted"


def test_without_memory_both_hear_of_it() -> None:
    ranks = InMemoryRanks(2)
    received = ranks.receive(1, 10)
    received.take_memory = no_memory
    sent = ranks.send(0, 1, LONG[:10])
    ranks.settle()
    assert (ranks.of(received), ranks.of(sent)) == ("MemoryError", "CollectiveAborted")
    assert "it has no memory" in str(ranks.error(sent))
    own = ranks.receive(1, 10, 1)
    own.take_memory = no_memory
    assert ranks.of(ranks.send(1, 1, LONG[:10])) == "CollectiveAborted"
    assert ranks.of(own) == "MemoryError"


def no_memory() -> memoryview:
    raise MemoryError("none left")


def test_a_mismatch_names_both_sides() -> None:
    ranks = InMemoryRanks(2)
    received, sent = ranks.receive(1, 12, tag=3), ranks.send(0, 1, LONG[:12], tag=3, dtype="int8")
    ranks.settle()
    errors = [ranks.error(transfer) for transfer in (sent, received)]
    assert [str(error) for error in errors] == [str(errors[0])] * 2
    for rank, error in enumerate(errors):
        assert isinstance(error, MessageMismatch)
        assert (error.rank, error.sender, error.receiver, error.tag) == (rank, 0, 1, 3)
        assert (error.sent, error.expected) == ("int8[12]", "uint8[12]")


# -- the end


def test_a_peer_that_leaves_ends_only_what_is_with_itself() -> None:
    ranks = InMemoryRanks(3)
    from_it, to_it, from_anybody = ranks.receive(0, 5, 2), ranks.send(0, 2, b"hello"), ranks.receive(0, 5)
    between = ranks.receive(0, 5, 1, tag=1), ranks.send(1, 0, b"hello", tag=1)
    error = ranks.say_goodbye(2, to=0)
    ranks.settle()
    assert [ranks.error(transfer) for transfer in (from_it, to_it)] == [error, error]
    assert [ranks.of(transfer) for transfer in (from_anybody, *between)] == ["open", "done", "done"]
    for call in (lambda: ranks.send(0, 2, b""), lambda: ranks.receive(0, 1, 2)):
        with pytest.raises(PeerLost, match="rank 2 left"):
            call()
    ranks.say_goodbye(1, to=0)
    assert "rank 1 left" in str(ranks.error(from_anybody))
    with pytest.raises(PeerLost, match="left the ring"):
        ranks.receive(0, 1)


def test_what_had_been_sent_before_the_goodbye_still_arrives() -> None:
    ranks = InMemoryRanks(2)
    received, sent = ranks.receive(1, len(LONG)), ranks.send(0, 1, LONG)
    while ranks.of(sent) == "open":
        for way in ranks.ways.values():
            way.leave()
        ranks.ways[1, 0].arrive(1 << 30)
        ranks.ways[0, 1].arrive(20)
    ranks.say_goodbye(0, to=1)
    assert ranks.of(received) == "open"
    ranks.settle()
    assert (ranks.of(received), bytes(received.memory)) == ("done", LONG)


@pytest.mark.parametrize("first", ["goodbye", "end of the lane"])
def test_what_had_not_been_sent_before_the_goodbye_fails_with_the_lane(first: str) -> None:
    ranks = InMemoryRanks(2)
    _, received = half_way(ranks)
    if first == "goodbye":
        ranks.say_goodbye(0, to=1)
        assert ranks.of(received) == "open"
    ranks.endpoints[1].lost(ranks.ways[0, 1], EOFError("it closed the connection"))
    if first != "goodbye":
        assert ranks.of(received) == "open"  # the goodbye may be on its way
        ranks.say_goodbye(0, to=1)
    assert ranks.of(received) == "PeerLeft"
    assert [peer for peer, _ in ranks.lost] == [0]


def test_when_the_ring_is_over_everything_ends_with_the_reason() -> None:
    ranks, error = InMemoryRanks(2), PeerLost(rank=1, reason="gone")
    sent, received = half_way(ranks)
    more = [ranks.send(0, 0, b"x"), ranks.receive(0, 1, tag=9), ranks.send(0, 1, b"y", tag=9), sent]
    ranks.fail(0, error)
    assert [ranks.ended.outcomes[transfer] for transfer in more] == [error] * 4
    assert not any(owner for *_, owner, _ in ranks.ways[0, 1].waiting)  # nobody reads the caller's memory any more
    ranks.fail(0, RingClosed("left"))
    with pytest.raises(PeerLost, match="gone"):
        ranks.send(0, 1, b"")
    ranks.endpoints[1].give_up(received, "")
    ranks.settle()  # what still comes is heard, and means nothing


# -- deadlines


def test_a_transfer_without_progress_is_reported_and_then_given_up(caplog: pytest.LogCaptureFixture) -> None:
    ranks = InMemoryRanks(3, timeout_seconds=30.0, warn_after_seconds=10.0)
    received, sent = ranks.receive(1, 4, tag=5), ranks.send(0, 2, b"four")
    assert ranks.opened == 2
    for endpoint, now in itertools.product((ranks.endpoints[0], ranks.endpoints[1]), (0.1, 11.0, 12.0, 29.0)):
        with caplog.at_level(logging.WARNING, "ringwide.p2p"):
            endpoint.check_progress(now)
    assert [record.getMessage() for record in caplog.records] == [
        "the message to rank 2 with tag 0 (uint8[4]): waiting for rank 2 (11 s without progress)",
        "the message to rank 2 with tag 0 (uint8[4]): waiting for rank 2 (29 s without progress)",
        "the message from any rank with tag 5 (uint8[4]): waiting for rank 0, rank 2 (11 s without progress)",
        "the message from any rank with tag 5 (uint8[4]): waiting for rank 0, rank 2 (29 s without progress)",
    ]
    for endpoint in ranks.endpoints:
        endpoint.check_progress(31.0)
    for transfer, waiting_for in ((received, (0, 2)), (sent, (2,))):
        error = ranks.error(transfer)
        assert isinstance(error, CollectiveTimeout)
        assert error.waiting_for == waiting_for
    assert str(ranks.error(sent)) == (
        "the message to rank 2 with tag 0 (uint8[4]): "
        "Timed out after no progress for 30 s (collective_timeout_seconds), waiting for rank 2"
    )
    ranks.settle()
    late = ranks.receive(2, 4)  # the offer was withdrawn
    assert ranks.of(late) == "open"


def test_a_timeout_that_is_set_later_holds_for_what_is_open() -> None:
    ranks = InMemoryRanks(2, timeout_seconds=30.0)
    sent = ranks.send(0, 1, b"four")
    ranks.endpoints[0].set_timeout(5.0)
    for now, state in ((0.1, "open"), (4.0, "open"), (5.2, "CollectiveTimeout")):
        ranks.endpoints[0].check_progress(now)
        assert ranks.of(sent) == state


def test_many_transfers_without_progress_are_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """And those that come later join it: there is a line every `warn_after_seconds`, not one for each."""
    ranks = InMemoryRanks(3, warn_after_seconds=10.0)
    with caplog.at_level(logging.WARNING, "ringwide.p2p"):
        for tenth in range(250):
            if tenth < 50:
                ranks.send(0, 1 + tenth % 2, b"four", tag=tenth)
            ranks.endpoints[0].check_progress(tenth / 10)
    assert [record.getMessage() for record in caplog.records] == [
        "the message to rank 1 with tag 0 (uint8[4]): waiting for rank 1 (10 s without progress)",
        "50 messages, first the message to rank 1 with tag 0 (uint8[4]): "
        "waiting for rank 1, rank 2 (20 s without progress)",
    ]


def test_progress_and_time_in_which_we_did_not_run_start_the_deadline_anew() -> None:
    ranks = InMemoryRanks(2, timeout_seconds=30.0)
    sent, received = half_way(ranks)
    for now in (1.0, 29.0):
        for endpoint in ranks.endpoints:
            endpoint.check_progress(now)
    ranks.ways[0, 1].leave()
    ranks.ways[0, 1].arrive(1 << 30)
    for endpoint in ranks.endpoints:
        endpoint.check_progress(40.0)
        endpoint.forgive(50.0)
        endpoint.check_progress(110.0)
    assert (ranks.of(sent), ranks.of(received)) == ("open", "open")
    ranks.endpoints[1].check_progress(121.0)
    ranks.settle()
    assert (ranks.of(sent), ranks.of(received)) == ("CollectiveAborted", "CollectiveTimeout")


# -- bytes that break the rules


BAD = {
    "an offer out of turn": Offer(6, 0, 0, 1, "uint8[1]").frame(),
    "an offer with our number": Offer(3, 0, 0, 1, "uint8[1]").frame(),
    "an offer in no space": Offer(4, 2, 0, 1, "uint8[1]").frame(),
    "a short offer": framed(FrameKind.OFFER, b"short", collective=4),
    "another epoch": Offer(4, 0, 0, 1, "uint8[1]").frame(epoch=1),
    "an answer to nothing": news(FrameKind.ACCEPT, "", collective=7),
    "an answer to their own": news(FrameKind.ACCEPT, "", collective=2),
    "an answer to number 0": news(FrameKind.DECLINE, "", collective=0),
    "a second answer": news(FrameKind.ACCEPT, "", collective=1),
    "no after yes": news(FrameKind.DECLINE, "", collective=1),
    "the end of nothing": news(FrameKind.WITHDRAW, "", collective=4),
    "data of nothing": data_frame(4, 0, b"x"),
    "no data of nothing": data_frame(4, 0, b""),
    "much data of nothing": data_frame(4, 0, bytes(SEGMENT_BYTES)),
    "another segment": data_frame(2, 1, LONG[:SEGMENT_BYTES]),
    "a short segment": data_frame(2, 0, LONG[:9]),
    "an empty segment": data_frame(2, 0, b""),
    "a coded segment": data_frame(2, 0, LONG[:SEGMENT_BYTES], codec=1),
    "a segment of a collective": data_frame(2, 0, LONG[:SEGMENT_BYTES], fingerprint=3),
    "a dispute": news(FrameKind.DISPUTE, "", collective=1),
    "a goodbye": news(FrameKind.GOODBYE, "it is done"),
    "an exchange that nobody made": news(FrameKind.ABORT, "", collective=1),
}


def busy() -> InMemoryRanks:
    """Rank 1 has accepted message 2 of rank 0, and rank 0 message 1 of rank 1."""
    ranks = InMemoryRanks(2)
    ranks.receive(1, len(LONG), 0)
    ranks.receive(0, len(LONG), 1)
    offer = Offer(2, 0, 0, len(LONG), f"uint8[{len(LONG)}]")
    ranks.ways[0, 1].pipe += offer.frame()
    ranks.ways[0, 1].arrive(1 << 30)
    ranks.send(1, 0, LONG)
    ranks.ways[0, 1].pipe += news(FrameKind.ACCEPT, "", collective=1)
    ranks.ways[0, 1].arrive(1 << 30)
    return ranks


@pytest.mark.parametrize("name", BAD)
def test_what_breaks_the_rules_is_refused(name: str) -> None:
    ranks = busy()
    ranks.ways[0, 1].pipe += BAD[name]
    with pytest.raises(RemoteProtocolError):
        ranks.ways[0, 1].arrive(1 << 30)


@given(
    st.lists(
        st.builds(
            lambda kind, number, segment, payload: (
                data_frame(number, segment, payload)
                if kind is FrameKind.DATA
                else framed(kind, payload[:64], collective=number)
            ),
            st.sampled_from(
                [FrameKind.DATA, FrameKind.ABORT, *(kind for kind in FrameKind if kind >= FrameKind.OFFER)]
            ),
            st.integers(0, 8),
            st.integers(0, 3),
            st.one_of(
                st.just(LONG[:SEGMENT_BYTES]),
                st.binary(max_size=SEGMENT_BYTES),
                st.builds(struct.Struct("<Bq").pack, st.integers(0, 2), st.integers(-2, 2)),
                st.builds(
                    lambda space, tag, nbytes, what: struct.pack("<BqQ", space, tag, nbytes) + what,
                    st.integers(0, 2),
                    st.integers(-2, 2),
                    st.sampled_from([0, 1, len(LONG), 2**64 - 1]),
                    st.sampled_from([b"uint8[1]", b"\xff", b"", f"uint8[{len(LONG)}]".encode()]),
                ),
            ),
        ),
        max_size=12,
    )
)
@settings(max_examples=400)
def test_any_frames_at_all_give_what_they_mean_or_a_protocol_error(frames: list[bytes]) -> None:
    ranks = busy()
    for frame in frames:
        ranks.ways[0, 1].pipe += frame
    try:
        ranks.ways[0, 1].arrive(1 << 30)
    except RemoteProtocolError:
        return
    finally:
        for rank in range(2):
            ranks.fail(rank, RingClosed("the test is over"))
        assert not any(endpoint.waits for endpoint in ranks.endpoints)


# -- any story at all


def story(
    ranks: InMemoryRanks, data: DataObject
) -> tuple[list[OutgoingTransfer], list[IncomingTransfer], list[Transfer], dict[Transfer, int]]:
    """Ranks send, receive and give up by chance, while bytes move by chance. Whose each transfer is comes last."""
    sent: list[OutgoingTransfer] = []
    received: list[IncomingTransfer] = []
    given_up: list[Transfer] = []
    any_rank, tags, sizes = st.integers(0, ranks.size - 1), st.integers(0, 1), st.sampled_from([1, 50, 200, 700])
    rank_of: dict[Transfer, int] = {}
    for act in data.draw(st.lists(st.sampled_from(["send", "receive", "give up", "leave", "arrive"]), max_size=60)):
        rank = data.draw(any_rank)
        if act == "send":
            payload = bytes([len(sent)]) * data.draw(sizes)
            sent.append(ranks.send(rank, data.draw(any_rank), payload, tag=data.draw(tags)))
            rank_of[sent[-1]] = rank
        elif act == "receive":
            source = data.draw(st.one_of(st.none(), any_rank))
            received.append(ranks.receive(rank, data.draw(sizes), source, tag=data.draw(tags)))
            rank_of[received[-1]] = rank
        elif act == "give up":
            openings = [
                transfer for transfer in (*sent, *received) if ranks.of(transfer) == "open" and transfer not in given_up
            ]
            if openings:
                transfer = data.draw(st.sampled_from(openings))
                given_up.append(transfer)
                ranks.endpoints[rank_of[transfer]].give_up(transfer, "by chance")
        elif ranks.ways:
            way = data.draw(st.sampled_from(list(ranks.ways.values())))
            if act == "leave":
                way.leave()
            else:
                way.arrive(data.draw(st.integers(1, 300)))
    return sent, received, given_up, rank_of


@given(st.data(), st.integers(1, 3), st.sampled_from([ROOM_FOR_ONE, ROOM_FOR_THREE, KEPT_LIMIT_BYTES]))
@settings(max_examples=300)
def test_whatever_happens_what_arrives_is_what_was_sent_once_and_in_order(
    data: DataObject, size: int, room: int
) -> None:
    """And what was sent arrives where it is wanted, however little the others keep."""
    ranks = InMemoryRanks(size, kept_limit_bytes=room)
    sent, received, given_up, rank_of = story(ranks, data)
    ranks.settle()
    originals = {transfer.payload[0]: transfer for transfer in sent}
    in_order: dict[object, list[int]] = defaultdict(list)
    for transfer in received:  # as they were posted
        if ranks.of(transfer) == "done":
            number = transfer.memory[0]
            assert bytes(transfer.memory) == bytes(originals.pop(number).payload)  # none of them twice
            in_order[rank_of[transfer], transfer.source, transfer.peer, transfer.tag].append(number)
    assert all(numbers == sorted(numbers) for numbers in in_order.values())
    for transfer in (*sent, *received):
        assert ranks.of(transfer) in ("open", "done", "CollectiveAborted", "MessageMismatch")
    waiting_sends = [transfer for transfer in sent if ranks.of(transfer) == "open" and transfer not in given_up]
    waiting_receives = [transfer for transfer in received if ranks.of(transfer) == "open" and transfer not in given_up]
    assert sum(len(endpoint._transfers.open) for endpoint in ranks.endpoints) == len(waiting_sends) + len(
        waiting_receives
    )
    for one, other in itertools.product(waiting_sends, waiting_receives):
        fits = other.source in (None, rank_of[one]) and (one.peer, one.tag) == (rank_of[other], other.tag)
        assert not fits, "they wait for each other"
    for endpoint in ranks.endpoints:
        for p2p in endpoint._transfers.by_peer.values():
            assert not p2p.leaving
            assert not p2p.arriving
            assert not p2p.unwanted


@given(st.lists(st.tuples(st.integers(0, 1), st.booleans()), min_size=1, max_size=20), st.booleans())
def test_messages_of_one_rank_with_one_tag_are_received_in_order(plan: list[tuple[int, bool]], held: bool) -> None:
    """Whatever is received from anybody, and whatever from this rank by name."""
    ranks = InMemoryRanks(2, kept_limit_bytes=ROOM_FOR_THREE if held else KEPT_LIMIT_BYTES)
    receives: dict[int, list[IncomingTransfer]] = {0: [], 1: []}
    for number, (tag, _) in enumerate(plan):
        ranks.send(0, 1, bytes([number]), tag=tag)
    for tag, by_name in plan:
        receives[tag].append(ranks.receive(1, 1, 0 if by_name else None, tag=tag))
    ranks.settle()
    for tag, transfers in receives.items():
        assert [transfer.memory[0] for transfer in transfers] == [
            n for n, (other, _) in enumerate(plan) if other == tag
        ]
