"""Records: whatever happens to one on its way, nobody takes it for what was sent."""

import hmac
import socket
import struct
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given, settings
from hypothesis import strategies as st

from ringwide.errors import ConfigError, CorruptFrame, RemoteProtocolError
from ringwide.transport import aead_wire
from ringwide.transport.aead_wire import RECORD_LIMIT_BYTES, EncryptedWire, KeyExchange
from ringwide.transport.wire import CutOff
from transport.wire import SMALL_BUFFER_BYTES, pattern, tcp_pair

ONE, OTHER = bytes(range(32)), bytes(range(32, 64))
KIB = 1024


def records_of(*messages: bytes) -> list[bytes]:
    """What a wire sends for messages that are short enough for one record each."""
    with tcp_pair() as (here, there):
        wire = EncryptedWire(here, ONE, OTHER)
        for message in messages:
            assert wire.send([message]) == len(message)
        assert not wire.unsent
        here.shutdown(socket.SHUT_WR)
        stream = everything(there)
    records = []
    while stream:
        end = 4 + struct.unpack("<I", stream[:4])[0] + 16
        records.append(stream[:end])
        stream = stream[end:]
    return records


def everything(sock: socket.socket) -> bytes:
    sock.settimeout(60)
    return b"".join(iter(lambda: sock.recv(1 << 20), b""))


@contextmanager
def reader() -> Iterator[tuple[EncryptedWire, socket.socket]]:
    """A wire that reads, and the bare socket from which it does."""
    with tcp_pair() as (ours, raw_socket):
        yield EncryptedWire(ours, OTHER, ONE), raw_socket


def read_all(wire: EncryptedWire, room_bytes: int = 1000) -> bytes:
    """To the end of the stream."""
    wire.socket.settimeout(60)
    received = b""
    while True:
        place = memoryview(bytearray(room_bytes))
        count = wire.receive([place])
        if count == 0:
            return received
        received += place[:count]


def what_is_read_of(records: Sequence[bytes]) -> bytes:
    with reader() as (wire, raw_socket):
        raw_socket.setblocking(True)
        raw_socket.sendall(b"".join(records))
        raw_socket.close()
        return read_all(wire)


MESSAGES = (b"first message", b"second", b"the third")


def test_what_was_sent_is_read() -> None:
    assert what_is_read_of(records_of(*MESSAGES)) == b"".join(MESSAGES)


def test_a_record_is_as_the_documentation_says() -> None:
    for number, (message, record) in enumerate(zip(MESSAGES, records_of(*MESSAGES), strict=True)):
        length = struct.pack("<I", len(message))
        assert record == length + AESGCM(ONE).encrypt(number.to_bytes(12, "little"), message, length)


def test_equal_messages_look_different_each_time() -> None:
    """They would not with a nonce that is used twice."""
    records = records_of(*[b"the same"] * 50)
    assert len(set(records)) == 50


def test_every_single_bit_that_flips_is_noticed() -> None:
    first, *others = records_of(*MESSAGES)
    for bit in range(8 * len(first)):
        damaged = bytearray(first)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises((CorruptFrame, CutOff)) as caught:
            what_is_read_of([bytes(damaged), *others])
        in_the_length = bit < 32
        assert caught.type is CorruptFrame or in_the_length, "a longer record is waited for, and the stream ends in it"


FIRST, SECOND, THIRD = records_of(*MESSAGES)


@pytest.mark.parametrize(
    "stream",
    [
        [FIRST, FIRST],
        [FIRST, SECOND, FIRST],
        [SECOND],
        [FIRST, THIRD],
        [FIRST, THIRD, SECOND],
        [FIRST, FIRST[:4] + SECOND[4:], THIRD],
    ],
    ids=["repeated", "repeated later", "the first left out", "one left out", "swapped", "with another's length"],
)
def test_records_that_are_not_the_next_ones_are_refused(stream: list[bytes]) -> None:
    with pytest.raises(CorruptFrame, match=r"encrypted record [012] cannot be decrypted"):
        what_is_read_of(stream)


def test_a_wire_does_not_believe_its_own_words() -> None:
    """A reflection: each direction has a key of its own."""
    with tcp_pair() as (ours, mirror):
        wire = EncryptedWire(ours, ONE, OTHER)
        wire.send([b"who is there?"])
        mirror.setblocking(True)
        mirror.send(mirror.recv(1000))
        wire.socket.settimeout(60)
        with pytest.raises(CorruptFrame):
            wire.receive([memoryview(bytearray(100))])


@pytest.mark.parametrize("kept", [1, 3, 4, 5, len(SECOND) - 1])
def test_an_end_inside_of_a_record_is_an_error(kept: int) -> None:
    with pytest.raises(CutOff, match="in the middle of an encrypted record"):
        what_is_read_of([FIRST, SECOND[:kept]])


@pytest.mark.parametrize("claim", [0, RECORD_LIMIT_BYTES + 1, 2**31, 2**32 - 1])
def test_an_impossible_claim_is_refused_before_there_is_memory_for_it(claim: int) -> None:
    with reader() as (wire, raw_socket):
        before = len(wire._buffer)
        raw_socket.send(struct.pack("<I", claim))
        wire.socket.settimeout(60)
        with pytest.raises(CorruptFrame, match=f"claims {claim} bytes, it must have 1 to {RECORD_LIMIT_BYTES}"):
            wire.receive([memoryview(bytearray(100))])
        assert len(wire._buffer) == before
        assert wire.more, "nothing else will come: whoever asks must get this answer again"


@given(
    sizes=st.lists(st.sampled_from([1, 47, 48, 1000, 16 * KIB, 70_000, 256 * KIB, 400_000]), min_size=1, max_size=5),
    cuts=st.lists(st.integers(0, 2_000_000), max_size=12),
    room_bytes=st.sampled_from([1000, 48, 128 * KIB, 1 << 20]),
)
@settings(max_examples=20)
def test_any_split_of_the_stream_gives_the_same_bytes(sizes: list[int], cuts: list[int], room_bytes: int) -> None:
    messages = [pattern(size, seed) for seed, size in enumerate(sizes)]
    with tcp_pair() as (here, there):
        there.setblocking(True)
        sender = EncryptedWire(here, ONE, OTHER)
        stream = b"".join(passed_on(sender, there, message) for message in messages)
    received = b""
    with reader() as (wire, raw_socket):
        raw_socket.setblocking(True)
        edges = {0, len(stream), *(cut % len(stream) for cut in cuts)}
        edges.update(range(0, len(stream), 32 * KIB))  # no more at a time than a kernel holds for certain
        for first, last in pairwise(sorted(edges)):
            raw_socket.sendall(stream[first:last])
            received += what_has_come(wire, room_bytes)
        raw_socket.shutdown(socket.SHUT_WR)
        received += read_all(wire)
    assert received == b"".join(messages)


def passed_on(wire: EncryptedWire, there: socket.socket, message: bytes) -> bytes:
    """All records of one message, read while they are sent: together they may be more than the kernel holds."""
    rest, stream = memoryview(message), b""
    there.setblocking(False)
    while rest or wire.unsent:
        try:
            rest = rest[wire.send([rest]) :] if rest else rest
            wire.flush()
        except BlockingIOError:
            pass
        try:
            while True:
                stream += there.recv(1 << 20)
        except BlockingIOError:
            pass
    return stream


def what_has_come(wire: EncryptedWire, room_bytes: int) -> bytes:
    received = b""
    while True:
        place = memoryview(bytearray(room_bytes))
        try:
            received += place[: wire.receive([place])]
        except BlockingIOError:
            assert not wire.more
            return received


def test_one_receive_fills_all_of_the_room() -> None:
    with reader() as (wire, raw_socket):
        raw_socket.send(FIRST)
        room = [memoryview(bytearray(5)), memoryview(bytearray(3)), memoryview(bytearray(100))]
        wire.socket.settimeout(60)
        assert wire.receive(room) == len(MESSAGES[0])
        assert b"".join(room).rstrip(b"\0") == MESSAGES[0]


def test_what_was_taken_is_free_and_waits_in_the_wire_until_the_kernel_has_it() -> None:
    with tcp_pair(SMALL_BUFFER_BYTES) as (here, there):
        wire, other = EncryptedWire(here, ONE, OTHER), EncryptedWire(there, OTHER, ONE)
        memory = bytearray(pattern(1 << 20))
        taken = wire.send([memoryview(memory)])
        assert 0 < taken < len(memory)
        assert wire.unsent
        with pytest.raises(BlockingIOError):
            wire.send([b"more"])
        memory[:] = bytes(len(memory))
        received = b""
        while len(received) < taken:
            wire.flush()
            received += what_has_come(other, 1 << 20)
        assert received == pattern(1 << 20)[:taken]
        assert not wire.unsent
        assert wire.send([b"more"]) == 4


def test_without_the_package_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    with tcp_pair() as (here, _), pytest.raises(ConfigError, match=r"pip install 'ringwide\[secure\]'"):
        EncryptedWire(here, ONE, OTHER)


def test_an_old_version_of_the_package_is_refused_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cryptography.hazmat.primitives.ciphers.aead.AESGCM", object)
    with tcp_pair() as (here, _), pytest.raises(ConfigError, match="version 47 of cryptography or newer"):
        EncryptedWire(here, ONE, OTHER)


def test_keys_that_would_use_a_nonce_twice_or_are_too_short_are_a_mistake() -> None:
    with tcp_pair() as (here, _):
        with pytest.raises(ValueError, match="one key for both directions"):
            EncryptedWire(here, ONE, ONE)
        with pytest.raises(ValueError, match="a key of 16 bytes, it must have 32"):
            EncryptedWire(here, ONE[:16], OTHER)


# Keys are renewed


def test_both_ends_renew_their_keys_at_the_same_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand, as docs/wire.md has it: two records for each key."""
    monkeypatch.setattr(aead_wire, "RECORDS_PER_KEY", 2)
    messages = [b"message %d" % number for number in range(7)]
    records, keys = records_of(*messages), [ONE]
    assert what_is_read_of(records) == b"".join(messages)
    for _ in range(3):
        keys.append(hmac.digest(keys[-1], b"ringwide next key", "sha256"))
    for number, record in enumerate(records):
        nonce = number.to_bytes(12, "little")
        assert AESGCM(keys[number // 2]).decrypt(nonce, record[4:], record[:4]) == messages[number]


def test_no_key_encrypts_more_than_256_gb() -> None:
    assert aead_wire.RECORDS_PER_KEY * RECORD_LIMIT_BYTES < 256e9
    assert aead_wire.RECORDS_PER_KEY < 2**32


# The exchange


def test_both_sides_of_an_exchange_know_the_same_and_no_other_does() -> None:
    one, other, third = KeyExchange(), KeyExchange(), KeyExchange()
    assert one.with_peer(other.public) == other.with_peer(one.public)
    assert len({one.public, other.public, third.public}) == 3
    assert third.with_peer(one.public) != one.with_peer(other.public)


@pytest.mark.parametrize("public", [bytes(32), bytes([1] + [0] * 31), b"", bytes(31)])
def test_a_public_key_without_a_secret_is_refused(public: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="with which no secret can be agreed on"):
        KeyExchange().with_peer(public)
