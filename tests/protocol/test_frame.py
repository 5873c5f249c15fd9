import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ringwide.errors import CorruptFrame, RemoteProtocolError
from ringwide.protocol.frame import (
    HEADER_BYTES,
    MAGIC,
    NEWS_LIMIT_BYTES,
    VERSION,
    FrameKind,
    check_payload,
    goodbye,
    news,
    pack_data,
    read_goodbye,
    seal,
    sealed_frame,
    shown,
    unpack,
    words_in,
)

LIMIT = 1 << 20


def unsigned(bits: int) -> st.SearchStrategy[int]:
    return st.integers(0, 2**bits - 1)


data_fields = st.fixed_dictionaries(
    {
        "bucket": unsigned(8),
        "hop": unsigned(16),
        "epoch": unsigned(32),
        "segment": unsigned(32),
        "collective": unsigned(64),
        "fingerprint": unsigned(64),
        "payload_bytes": st.integers(0, LIMIT),
    }
)


@given(data_fields)
def test_a_header_of_numbers_comes_back_as_it_was(fields: dict[str, int]) -> None:
    packed = pack_data(**fields)
    assert len(packed) == HEADER_BYTES
    header = unpack(packed, limit_bytes=LIMIT)
    assert (header.magic, header.version, header.kind, header.codec) == (MAGIC, VERSION, FrameKind.DATA, 0)
    assert {name: getattr(header, name) for name in fields} == fields


@given(st.binary(max_size=60), data_fields)
def test_a_header_is_read_at_its_offset(before: bytes, fields: dict[str, int]) -> None:
    packed = pack_data(**fields)
    assert unpack(before + packed, len(before), limit_bytes=LIMIT) == unpack(packed, limit_bytes=LIMIT)


@given(st.sampled_from(FrameKind), st.text(max_size=3000), unsigned(64), unsigned(64), unsigned(32))
@example(FrameKind.ABORT, "é" * NEWS_LIMIT_BYTES, 1, 2, 3)
def test_news_come_back_as_they_were(kind: FrameKind, text: str, collective: int, fingerprint: int, epoch: int) -> None:
    frame = news(kind, text, collective=collective, fingerprint=fingerprint, epoch=epoch)
    header = unpack(frame, limit_bytes=LIMIT)
    assert (header.kind, header.collective, header.fingerprint, header.epoch) == (kind, collective, fingerprint, epoch)
    assert frame[HEADER_BYTES:] == text.encode()[:NEWS_LIMIT_BYTES]
    assert header.payload_bytes == len(frame) - HEADER_BYTES


@given(st.binary(min_size=HEADER_BYTES, max_size=HEADER_BYTES))
def test_garbage_is_a_header_or_a_protocol_error(garbage: bytes) -> None:
    assert_sane_or_refused(garbage)


@given(data_fields, st.integers(0, HEADER_BYTES - 1), st.integers(0, 255))
def test_one_wrong_byte_is_a_header_or_a_protocol_error(fields: dict[str, int], at: int, byte: int) -> None:
    packed = bytearray(pack_data(**fields))
    packed[at] = byte
    assert_sane_or_refused(bytes(packed))


def assert_sane_or_refused(data: bytes) -> None:
    try:
        header = unpack(data, limit_bytes=LIMIT)
    except RemoteProtocolError:
        return
    assert (header.magic, header.version) == (MAGIC, VERSION)
    assert header.kind in set(FrameKind)
    assert header.codec == 0 or header.kind == FrameKind.DATA
    assert header.payload_bytes <= (LIMIT if header.kind == FrameKind.DATA else NEWS_LIMIT_BYTES)


GOOD = pack_data(bucket=0, hop=1, epoch=0, segment=0, collective=1, fingerprint=5, payload_bytes=0)


@pytest.mark.parametrize(
    ("offset", "wrong", "message"),
    [
        (0, b"GE", "not a ringwide frame"),
        (2, bytes([VERSION + 1]), f"protocol version {VERSION + 1}, this is version {VERSION}"),
        (3, b"\x00", "unknown kind of frame: 0"),
        (3, bytes([FrameKind.LOST, 7]), "a control frame has codec number 7"),
        (32, (101).to_bytes(4, "little"), "claims 101 bytes, at most 100"),
    ],
)
def test_a_wrong_field_is_named(offset: int, wrong: bytes, message: str) -> None:
    unpack(GOOD, limit_bytes=100)
    with pytest.raises(RemoteProtocolError, match=message):
        unpack(GOOD[:offset] + wrong + GOOD[offset + len(wrong) :], limit_bytes=100)


def test_words_have_a_limit_of_their_own() -> None:
    too_long = NEWS_LIMIT_BYTES + 1
    frame = bytearray(news(FrameKind.LOST, "x"))
    frame[32:36] = too_long.to_bytes(4, "little")
    with pytest.raises(RemoteProtocolError, match=f"at most {NEWS_LIMIT_BYTES}"):
        unpack(frame, limit_bytes=2 * too_long)


# Sealed frames


@given(data_fields, st.binary(max_size=200), unsigned(64))
def test_a_sealed_header_comes_back_with_the_same_fields(fields: dict[str, int], payload: bytes, number: int) -> None:
    plain = pack_data(**fields)
    packed = seal(plain, payload, number)
    assert len(packed) == HEADER_BYTES
    header = unpack(packed, limit_bytes=LIMIT, sealed=True, number=number)
    assert header[:-2] == unpack(plain, limit_bytes=LIMIT)[:-2]
    check_payload(header, payload)


def read_sealed(frame: bytes, number: int = 0) -> None:
    """As a reader does it: the header, then as many bytes as it says."""
    header = unpack(frame, limit_bytes=LIMIT, sealed=True, number=number)
    check_payload(header, frame[HEADER_BYTES : HEADER_BYTES + header.payload_bytes])


SEALED = sealed_frame(news(FrameKind.ABORT, "enough", collective=41, fingerprint=2**63 + 5, epoch=3))


def test_every_single_bit_that_flips_in_a_sealed_frame_is_noticed() -> None:
    read_sealed(SEALED)
    for bit in range(8 * len(SEALED)):
        damaged = bytearray(SEALED)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptFrame):
            read_sealed(bytes(damaged))


@given(st.binary(min_size=1, max_size=300), st.data())
def test_changed_bytes_of_a_payload_are_noticed(payload: bytes, data: st.DataObject) -> None:
    other = data.draw(st.binary(min_size=len(payload), max_size=len(payload)).filter(lambda other: other != payload))
    header = unpack(
        seal(pack_data(**dict.fromkeys(FIELDS, 0), payload_bytes=len(payload)), payload), limit_bytes=LIMIT, sealed=True
    )
    check_payload(header, payload)
    with pytest.raises(CorruptFrame, match=f"the checksum of its {len(payload)} bytes is 0x"):
        check_payload(header, other)


FIELDS = ("bucket", "hop", "epoch", "segment", "collective", "fingerprint")


@pytest.mark.parametrize("at", range(HEADER_BYTES))
def test_damage_in_a_header_is_noticed_before_its_payload_has_come(at: int) -> None:
    damaged = bytearray(SEALED[:HEADER_BYTES])
    damaged[at] ^= 0x10
    with pytest.raises(CorruptFrame, match="a header was damaged on its way"):
        unpack(damaged, limit_bytes=LIMIT, sealed=True)


def test_a_damaged_length_is_not_believed() -> None:
    """It would be refused as too long; but that it is damaged comes first, whatever it claims."""
    damaged = bytearray(SEALED)
    damaged[32:36] = (2**31).to_bytes(4, "little")
    with pytest.raises(CorruptFrame, match="a header was damaged on its way"):
        unpack(damaged, limit_bytes=LIMIT, sealed=True)


@pytest.mark.parametrize("sealed_as", [0, 1, 2, 2**64 - 1])
def test_a_frame_with_another_number_does_not_fit(sealed_as: int) -> None:
    frame = seal(SEALED[:HEADER_BYTES], SEALED[HEADER_BYTES:], sealed_as) + SEALED[HEADER_BYTES:]
    read_sealed(frame, sealed_as)
    with pytest.raises(CorruptFrame, match="left out, repeated or swapped"):
        read_sealed(frame, 3)


def test_a_frame_that_is_not_sealed_is_refused_where_it_must_be() -> None:
    with pytest.raises(CorruptFrame):
        unpack(GOOD, limit_bytes=LIMIT, sealed=True)


@pytest.mark.parametrize("at", [36, 43, 44, 47])
def test_a_check_is_refused_where_none_was_agreed_on(at: int) -> None:
    frame = bytearray(GOOD)
    frame[at] = 1
    with pytest.raises(RemoteProtocolError, match="has checksums, but none were agreed on"):
        unpack(frame, limit_bytes=LIMIT)


def test_handshakes_can_be_read_by_those_who_have_agreed_on_nothing() -> None:
    read_sealed(sealed_frame(news(FrameKind.HELLO, "{}")))


# Goodbyes


@given(st.text(max_size=30), st.lists(unsigned(64), max_size=9), unsigned(32))
def test_a_goodbye_comes_back_as_it_was(reason: str, finished: list[int], epoch: int) -> None:
    frame = goodbye(reason, finished, epoch=epoch)
    header = unpack(frame, limit_bytes=LIMIT)
    assert (header.kind, header.epoch, header.payload_bytes) == (FrameKind.GOODBYE, epoch, len(frame) - HEADER_BYTES)
    assert read_goodbye(memoryview(frame)[HEADER_BYTES:]) == (finished, shown(reason.encode(errors="replace").decode()))


@given(st.binary(max_size=60))
def test_the_words_of_a_peer_are_one_line_that_does_nothing_to_a_terminal(payload: bytes) -> None:
    words = words_in(payload)
    assert words.isprintable()
    assert len(words) == len(payload.decode(errors="replace"))


@pytest.mark.parametrize(
    ("said", "seen"),
    [
        ("it failed: no space left", "it failed: no space left"),
        ("été, 測試 ✓", "été, 測試 ✓"),
        ("line\nanother\ttab", "line another tab"),
        ("\x1b[2J\x1b]0;title\x07red", "\ufffd[2J\ufffd]0;title\ufffdred"),
        ("back\x08\x7f", "back\ufffd\ufffd"),
        ("right\u202eto left", "right\ufffdto left"),
    ],
)
def test_only_what_controls_a_terminal_is_replaced(said: str, seen: str) -> None:
    assert words_in(said.encode()) == seen


@given(st.binary(max_size=40))
def test_any_bytes_are_a_goodbye_or_a_protocol_error(payload: bytes) -> None:
    try:
        finished, _ = read_goodbye(payload)
    except RemoteProtocolError:
        return
    assert 2 + 8 * len(finished) <= len(payload)


@pytest.mark.parametrize("payload", [b"", b"\1", b"\1\0", b"\2\0" + bytes(15)])
def test_a_goodbye_that_ends_too_early_is_refused(payload: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match=f"of {len(payload)} bytes is too short"):
        read_goodbye(payload)
