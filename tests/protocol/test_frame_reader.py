"""The promise: any split of the stream gives the same frames, and garbage gives `RemoteProtocolError`, nothing else."""

from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringwide.errors import CorruptFrame, RemoteProtocolError
from ringwide.protocol.frame import (
    HEADER_BYTES,
    REFERENCE,
    SPILLED,
    FrameKind,
    FrameReader,
    Header,
    news,
    pack_data,
    seal,
)

LIMIT = 300


class Receiver:
    """Feeds a reader piece by piece, as a socket would. Every landing is refused `refusals` times first."""

    def __init__(self, *, staging_bytes: int, refusals: int = 0, sealed: bool = False) -> None:
        self.frames: list[tuple[Header, bytes]] = []
        self.landings = self.retries = 0
        self._refusals, self._refused = refusals, 0
        self.reader = FrameReader(
            landing=self._landing,
            arrived=self._arrived,
            limit_bytes=LIMIT,
            staging_bytes=staging_bytes,
            sealed=sealed,
            numbered=sealed,
        )

    def _landing(self, header: Header) -> memoryview | None:
        if self._refused < self._refusals:
            self._refused += 1
            return None
        self._refused = 0
        self.landings += 1
        return memoryview(bytearray(header.payload_bytes))

    def _arrived(self, header: Header, payload: memoryview) -> None:
        self.frames.append((header, bytes(payload)))

    def feed(self, data: bytes) -> None:
        """Everything the kernel has; a blocked reader is asked to try again until it takes it."""
        while data:
            room = self.reader.room()
            assert bool(room) != self.reader.blocked
            if not room:
                self._retry()
                continue
            assert all(len(place) > 0 for place in room)
            count = self._fill(room, data)
            data = data[count:]
            self.reader.received(count)
        while self.reader.blocked:
            self._retry()

    def _retry(self) -> None:
        self.retries += 1
        assert self.retries < 1000, "it stays blocked"
        self.reader.retry()

    @staticmethod
    def _fill(room: Iterable[memoryview], data: bytes) -> int:
        count = 0
        for place in room:
            piece = data[count : count + len(place)]
            place[: len(piece)] = piece
            count += len(piece)
        return count


def data_frame(payload: bytes, segment: int) -> bytes:
    return (
        pack_data(bucket=0, hop=1, epoch=0, segment=segment, collective=1, fingerprint=9, payload_bytes=len(payload))
        + payload
    )


frames = st.lists(
    st.one_of(
        st.builds(data_frame, st.binary(max_size=LIMIT), st.integers(0, 9)),
        st.builds(lambda text: news(FrameKind.ABORT, text), st.text(max_size=80)),
    ),
    max_size=8,
)
staging_sizes = st.sampled_from([0, HEADER_BYTES, HEADER_BYTES + 1, HEADER_BYTES + 60, 4096])


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[first:last] for first, last in pairwise(edges)]


@given(frames, st.lists(st.integers(0, 10_000), max_size=40), staging_sizes, st.integers(0, 2))
def test_any_split_gives_the_same_frames(sent: list[bytes], cuts: list[int], staging_bytes: int, refusals: int) -> None:
    receiver = Receiver(staging_bytes=staging_bytes, refusals=refusals)
    for piece in pieces(b"".join(sent), cuts):
        receiver.feed(piece)
    assert [payload for _, payload in receiver.frames] == [frame[HEADER_BYTES:] for frame in sent]
    assert [header.payload_bytes for header, _ in receiver.frames] == [len(frame) - HEADER_BYTES for frame in sent]


@given(frames, staging_sizes)
def test_byte_by_byte_gives_the_same_frames_as_all_at_once(sent: list[bytes], staging_bytes: int) -> None:
    one, other = Receiver(staging_bytes=staging_bytes), Receiver(staging_bytes=staging_bytes)
    data = b"".join(sent)
    one.feed(data)
    for index in range(len(data)):
        other.feed(data[index : index + 1])
    assert one.frames == other.frames


@given(st.binary(max_size=LIMIT), staging_sizes)
def test_only_what_does_not_fit_the_staging_buffer_is_landed(payload: bytes, staging_bytes: int) -> None:
    receiver = Receiver(staging_bytes=staging_bytes)
    receiver.feed(data_frame(payload, 0))
    assert receiver.landings == (len(payload) > max(0, staging_bytes - HEADER_BYTES))


@given(frames, st.binary(min_size=HEADER_BYTES, max_size=200), st.lists(st.integers(0, 10_000), max_size=20))
def test_garbage_after_good_frames_is_a_protocol_error_and_nothing_else(
    sent: list[bytes], garbage: bytes, cuts: list[int]
) -> None:
    receiver = Receiver(staging_bytes=64)
    try:
        for piece in pieces(b"".join(sent) + b"\xff" + garbage, cuts):
            receiver.feed(piece)
    except RemoteProtocolError:
        assert len(receiver.frames) == len(sent)
    else:
        pytest.fail("a frame that begins with ff was taken")


@given(st.lists(st.binary(min_size=1, max_size=100), max_size=10), staging_sizes)
def test_any_bytes_at_all_give_frames_or_a_protocol_error(chunks: list[bytes], staging_bytes: int) -> None:
    receiver = Receiver(staging_bytes=staging_bytes)
    try:
        for chunk in chunks:
            receiver.feed(chunk)
    except RemoteProtocolError:
        return


def test_a_claim_beyond_the_limit_is_refused_before_anything_is_made_for_it() -> None:
    receiver = Receiver(staging_bytes=0)
    with pytest.raises(RemoteProtocolError, match=f"at most {LIMIT}"):
        receiver.feed(data_frame(bytes(LIMIT + 1), 0))
    assert receiver.landings == 0


def test_a_blocked_reader_offers_no_room_and_loses_nothing() -> None:
    receiver = Receiver(staging_bytes=0, refusals=1)
    frame = data_frame(b"payload", 3)
    room = receiver.reader.room()
    room[0][:] = frame[:HEADER_BYTES]
    receiver.reader.received(HEADER_BYTES)
    assert receiver.reader.blocked
    assert receiver.reader.room() == []
    receiver.reader.retry()
    receiver.feed(frame[HEADER_BYTES:])
    assert [payload for _, payload in receiver.frames] == [b"payload"]


@pytest.mark.parametrize(("collective", "lands"), [(1, 3), (2, 7)], ids=["its collective", "another one"])
def test_what_is_diverted_lands_elsewhere_and_the_stream_goes_on(collective: int, lands: int) -> None:
    place = memoryview(bytearray(7))
    frames: list[bytes] = []
    reader = FrameReader(
        landing=lambda header: place[: header.payload_bytes],
        arrived=lambda header, payload: frames.append(bytes(payload)),
        limit_bytes=LIMIT,
    )

    def feed(data: bytes) -> None:
        while data:
            count = Receiver._fill(reader.room(), data)
            data = data[count:]
            reader.received(count)

    stream = data_frame(b"payload", 3)
    feed(stream[: HEADER_BYTES + 3])
    reader.divert(collective)
    feed(stream[HEADER_BYTES + 3 :])
    assert bytes(place) == b"payload"[:lands].ljust(7, b"\0")
    reader.divert(1)  # nothing is being landed: nothing happens
    feed(data_frame(b"next", 4))
    assert frames[1:] == [b"next"]


# Sealed streams


def sealed(sent: list[bytes]) -> list[bytes]:
    """The same frames, sealed with their numbers."""
    parts = [(frame[:HEADER_BYTES], frame[HEADER_BYTES:]) for frame in sent]
    return [seal(header, payload, number) + payload for number, (header, payload) in enumerate(parts)]


@given(frames, st.lists(st.integers(0, 10_000), max_size=40), staging_sizes, st.integers(0, 2))
def test_any_split_of_a_sealed_stream_gives_the_same_frames(
    sent: list[bytes], cuts: list[int], staging_bytes: int, refusals: int
) -> None:
    receiver = Receiver(staging_bytes=staging_bytes, refusals=refusals, sealed=True)
    for piece in pieces(b"".join(sealed(sent)), cuts):
        receiver.feed(piece)
    assert [payload for _, payload in receiver.frames] == [frame[HEADER_BYTES:] for frame in sent]


some_frames = st.lists(st.builds(data_frame, st.binary(max_size=LIMIT), st.integers(0, 9)), min_size=2, max_size=6)


@given(some_frames, staging_sizes, st.data())
def test_nothing_of_a_damaged_frame_arrives(sent: list[bytes], staging_bytes: int, data: st.DataObject) -> None:
    stream = bytearray(b"".join(sealed(sent)))
    at = data.draw(st.integers(0, len(stream) - 1))
    stream[at] ^= data.draw(st.integers(1, 255))
    receiver = Receiver(staging_bytes=staging_bytes, sealed=True)
    with pytest.raises(CorruptFrame):
        receiver.feed(bytes(stream))
    arrived = [payload for _, payload in receiver.frames]
    whole = [frame[HEADER_BYTES:] for frame in sent]
    assert arrived == whole[: len(arrived)]
    assert sum(map(len, arrived)) + HEADER_BYTES * len(arrived) <= at


@given(some_frames, staging_sizes, st.data())
def test_frames_that_are_left_out_repeated_or_swapped_are_noticed(
    sent: list[bytes], staging_bytes: int, data: st.DataObject
) -> None:
    stream = sealed(sent)
    at = data.draw(st.integers(0, len(stream) - 2))
    wrong = data.draw(
        st.sampled_from(
            [
                [*stream[:at], *stream[at + 1 :]],
                [*stream[: at + 1], *stream[at:]],
                [*stream[:at], stream[at + 1], stream[at], *stream[at + 2 :]],
            ]
        )
    )
    receiver = Receiver(staging_bytes=staging_bytes, sealed=True)
    with pytest.raises(CorruptFrame):
        receiver.feed(b"".join(wrong))
    arrived = [payload for _, payload in receiver.frames]
    assert arrived == [frame[HEADER_BYTES:] for frame in sent[: len(arrived)]]


def test_what_is_diverted_is_not_checked_but_what_comes_after_it_is() -> None:
    """Its beginning has landed in memory that belongs to somebody else by now."""
    receiver = Receiver(staging_bytes=0, sealed=True)
    stream = b"".join(sealed([data_frame(b"payload", 3), data_frame(b"next", 4)]))
    receiver.feed(stream[: HEADER_BYTES + 3])
    receiver.reader.divert(1)
    receiver.feed(stream[HEADER_BYTES + 3 : -1])
    with pytest.raises(CorruptFrame):
        receiver.feed(b"?")
    assert len(receiver.frames) == 1


# Payloads in shared memory

LARGE = 40
"""Payloads of so many bytes and more lie in shared memory."""


class Shared(Receiver):
    """One that shares memory with the sender. Every slot is refused once."""

    def __init__(self, staging_bytes: int, *, lands_all: bool) -> None:
        super().__init__(staging_bytes=staging_bytes)
        self.slots: list[int] = []
        self._slot_refused = False
        self.reader = FrameReader(
            landing=self._landing,
            arrived=self._arrived,
            limit_bytes=LIMIT,
            staging_bytes=staging_bytes,
            shared=self,
            lands_all=lands_all,
        )

    def holds(self, payload_bytes: int) -> bool:
        return payload_bytes >= LARGE

    def arrived(self, header: Header, slot: int) -> bool:
        self._slot_refused = not self._slot_refused
        if self._slot_refused:
            return False
        self.frames.append((header, b""))
        self.slots.append(slot)
        return True


def shared_stream(payloads: list[bytes], free_slots: int) -> tuple[bytes, list[bytes], list[int]]:
    """What is sent; the payloads that arrive by the stream, empty for those that do not; the slots of those."""
    stream, arrive, slots = b"", [], []
    for segment, payload in enumerate(payloads):
        frame = data_frame(payload, segment)
        if len(payload) < LARGE:
            stream, arrive = stream + frame, [*arrive, payload]
        elif len(slots) < free_slots:
            stream, arrive = stream + frame[:HEADER_BYTES] + REFERENCE.pack(len(slots)), [*arrive, b""]
            slots.append(len(slots))
        else:
            stream += frame[:HEADER_BYTES] + REFERENCE.pack(SPILLED) + payload
            arrive.append(payload)
    return stream, arrive, slots


@given(
    st.lists(st.binary(max_size=2 * LARGE), max_size=8),
    st.lists(st.integers(0, 2000), max_size=9),
    st.sampled_from([HEADER_BYTES + REFERENCE.size, HEADER_BYTES + 30, 4096]),
    st.integers(0, 8),
    st.booleans(),
)
def test_any_split_of_a_stream_with_references_gives_the_same_frames(
    payloads: list[bytes], cuts: list[int], staging_bytes: int, free_slots: int, lands_all: bool
) -> None:
    stream, arrive, slots = shared_stream(payloads, free_slots)
    receiver = Shared(staging_bytes, lands_all=lands_all)
    for piece in pieces(stream, cuts):
        receiver.feed(piece)
    assert [header.segment for header, _ in receiver.frames] == list(range(len(payloads)))
    assert [payload for _, payload in receiver.frames] == arrive
    assert receiver.slots == slots
    assert not receiver.reader.inside_a_frame
    assert not receiver.reader.missing


def test_every_way_of_a_payload_is_taken_wherever_the_stream_is_cut() -> None:
    stream, arrive, slots = shared_stream([b"a", b"b" * LARGE, b"", b"c" * LARGE, b"d"], 1)
    for cut in range(len(stream)):
        for lands_all in (False, True):
            receiver = Shared(4096, lands_all=lands_all)
            receiver.feed(stream[:cut])
            receiver.feed(stream[cut:])
            assert ([payload for _, payload in receiver.frames], receiver.slots) == (arrive, slots)


def test_a_reader_knows_whether_a_stream_may_end_here_and_what_is_certain_to_come() -> None:
    receiver = Receiver(staging_bytes=0)
    frame = data_frame(b"payload", 3)
    seen = []
    for byte in frame:
        receiver.feed(bytes([byte]))
        seen.append((receiver.reader.inside_a_frame, receiver.reader.missing))
    before = [(True, 0)] * (HEADER_BYTES - 1)
    assert seen == [*before, *((True, missing) for missing in range(7, 0, -1)), (False, 0)]


def test_to_try_again_is_nothing_to_a_reader_that_is_not_blocked() -> None:
    receiver = Receiver(staging_bytes=0)
    receiver.reader.retry()
    receiver.feed(data_frame(b"payload", 3))
    receiver.reader.retry()
    assert [payload for _, payload in receiver.frames] == [b"payload"]
