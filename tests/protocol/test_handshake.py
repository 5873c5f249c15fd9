import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringwide.errors import RemoteProtocolError
from ringwide.protocol.frame import HEADER_BYTES, MAGIC, NEWS_LIMIT_BYTES, VERSION, FrameKind, pack_data, sealed_frame
from ringwide.protocol.handshake import (
    RANKS_LIMIT,
    Difference,
    Hello,
    check_prefix,
    differences,
    handshake_frame,
    read_difference,
    read_header,
    read_hello,
)

settings = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**40), 2**40), st.floats(allow_nan=False), st.text(max_size=20)
)


@st.composite
def hellos(draw: st.DrawFn) -> Hello:
    size = draw(st.integers(1, RANKS_LIMIT))
    return Hello(
        rank=draw(st.integers(0, size - 1)),
        size=size,
        lane=draw(st.integers(0, 64)),
        peers=draw(st.text(max_size=60)),
        settings=draw(st.dictionaries(st.text(max_size=20), settings, max_size=4)),
        checksum=draw(st.booleans()),
        shares=draw(st.booleans()),
    )


# Round trips


@given(hellos(), st.sampled_from([FrameKind.HELLO, FrameKind.WELCOME]))
def test_a_hello_comes_back_as_it_was(hello: Hello, kind: FrameKind) -> None:
    frame = handshake_frame(kind, hello.body())
    header = read_header(frame[:HEADER_BYTES])
    assert (header.kind, header.payload_bytes) == (kind, len(frame) - HEADER_BYTES)
    assert read_hello(frame[HEADER_BYTES:]) == hello


@given(st.text(max_size=50), settings, settings)
def test_a_difference_comes_back_as_it_was(field: str, dialer: Any, listener: Any) -> None:
    difference = Difference(field, dialer, listener)
    frame = handshake_frame(FrameKind.REFUSED, difference.body())
    assert read_header(frame[:HEADER_BYTES]).kind == FrameKind.REFUSED
    assert read_difference(frame[HEADER_BYTES:]) == difference


# What two ranks must have in common

DIALER = Hello(1, 2, lane=0, peers="a:1\nb:1", settings={"lanes": 1, "segment_bytes": 4096}, checksum=True, shares=True)
LISTENER = replace(DIALER, rank=0)


def test_ranks_that_were_started_alike_do_not_differ() -> None:
    assert differences(DIALER, LISTENER) is None


@pytest.mark.parametrize(
    ("change", "field", "theirs", "ours"),
    [
        ({"size": 3, "peers": "a:1\nb:1\nc:1"}, "size of the ring", 3, 2),
        ({"peers": "a:1\nb:2"}, "address of rank 1", "b:2", "b:1"),
        ({"peers": "c:1\nb:2"}, "address of rank 0", "c:1", "a:1"),
        ({"settings": {"lanes": 2, "segment_bytes": 4096}}, "lanes", 2, 1),
        ({"settings": {"lanes": 1}}, "segment_bytes", None, 4096),
        ({"settings": {**DIALER.settings, "new": True}}, "new", True, None),
        ({"rank": 0}, "rank", 0, 0),
    ],
)
def test_a_difference_names_the_field_and_both_values(
    change: dict[str, Any], field: str, theirs: object, ours: object
) -> None:
    difference = differences(replace(DIALER, **change), LISTENER)
    assert difference is not None
    assert difference.field.startswith(field)
    assert (difference.dialer, difference.listener) == (theirs, ours)


@given(hellos(), hellos())
def test_any_two_hellos_can_be_compared(dialer: Hello, listener: Hello) -> None:
    if differences(dialer, listener) is None:
        assert (dialer.size, dialer.peers) == (listener.size, listener.peers)
        assert dialer.rank != listener.rank


def test_a_list_of_peers_that_goes_on_after_the_other_ends() -> None:
    """Only a peer that lies about its size sends this, but it must not bring us down."""
    difference = differences(replace(DIALER, peers="a:1\nb:1\nc:1"), LISTENER)
    assert difference == Difference("number of lines in the peers file", 3, 2)


def test_both_sides_get_the_same_error_with_the_values_the_right_way_round() -> None:
    difference = Difference("lanes", dialer=2, listener=1)
    dialer = difference.as_error(rank=1, peer="rank 0", dialed=True)
    listener = difference.as_error(rank=0, peer="rank 1", dialed=False)
    assert (dialer.field, dialer.ours, dialer.theirs) == ("lanes", 2, 1)
    assert (listener.field, listener.ours, listener.theirs) == ("lanes", 1, 2)


def test_an_error_shows_nothing_that_a_terminal_would_obey() -> None:
    error = Difference("lanes\n\x1b[2J", "\x1b[0m", 1).as_error(rank=0, peer="rank 1", dialed=False)
    assert str(error).isprintable()


# Untrusted bytes


@given(st.binary(max_size=300))
def test_garbage_is_a_protocol_error_and_nothing_else(garbage: bytes) -> None:
    for read in (read_hello, read_difference):
        with pytest.raises(RemoteProtocolError):
            read(garbage)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.fixed_dictionaries(dict.fromkeys(("rank", "size", "lane", "peers", "settings", "checksum"), json_values)))
def test_fields_of_any_type_are_a_hello_or_a_protocol_error(fields: dict[str, Any]) -> None:
    try:
        hello = read_hello(json.dumps(fields).encode())
    except RemoteProtocolError:
        return
    assert 0 <= hello.rank < hello.size <= RANKS_LIMIT


@given(json_values)
def test_any_json_is_a_difference_or_a_protocol_error(value: Any) -> None:
    for payload in (value, {"field": "x", "dialer": value, "listener": value}):
        try:
            read_difference(json.dumps(payload).encode())
        except RemoteProtocolError:
            continue


@pytest.mark.parametrize(
    "payload",
    [
        b"[" * NEWS_LIMIT_BYTES,
        b"{}",
        b"\xff\xfe",
        b"[]",
        b" " * (NEWS_LIMIT_BYTES + 1),
        b'{"rank": ' + b"9" * 4000 + b"}",
    ],
)
def test_what_an_attacker_might_try(payload: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        read_hello(payload)


@pytest.mark.parametrize(
    "change",
    [
        {"rank": -1},
        {"rank": 2},
        {"size": RANKS_LIMIT + 1},
        {"lane": -1},
        {"rank": True},
        {"checksum": 1},
        {"shares": 0},
        {"settings": {"lanes": [1]}},
    ],
)
def test_an_impossible_hello_is_refused(change: dict[str, Any]) -> None:
    fields = {"rank": 1, "size": 2, "lane": 0, "peers": "", "settings": {}, "checksum": True, "shares": False} | change
    with pytest.raises(RemoteProtocolError):
        read_hello(json.dumps(fields).encode())


# The first bytes


def test_a_peer_of_this_version_passes() -> None:
    assert check_prefix(handshake_frame(FrameKind.HELLO, DIALER.body())[:3]) is None


def test_another_version_is_a_difference() -> None:
    magic = MAGIC.to_bytes(2, "little")
    assert check_prefix(magic + bytes([VERSION + 1])) == Difference("protocol version", VERSION + 1, VERSION)


@pytest.mark.parametrize("first_bytes", [b"\x15\x03\x01", b"\x16\x03\x01"], ids=["alert", "handshake"])
def test_who_speaks_tls_is_told_so(first_bytes: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="it speaks TLS"):
        check_prefix(first_bytes)


@given(st.binary(min_size=3, max_size=3))
def test_any_first_bytes_are_judged(first_bytes: bytes) -> None:
    try:
        check_prefix(first_bytes)
    except RemoteProtocolError:
        assert first_bytes[:2] != b"RW"


def test_a_frame_of_a_joined_ring_is_refused_before_the_handshake() -> None:
    unsealed = pack_data(bucket=0, hop=0, epoch=0, segment=0, collective=1, fingerprint=0, payload_bytes=0)
    frame = sealed_frame(unsealed)
    with pytest.raises(RemoteProtocolError, match="before the handshake"):
        read_header(frame)
