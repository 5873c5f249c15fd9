"""Proofs: what one is worth, and that it is worth nothing anywhere else."""

import copy
import json
import pickle
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringwide.errors import RemoteProtocolError
from ringwide.protocol import key_proof
from ringwide.protocol.frame import HEADER_BYTES, FrameKind
from ringwide.protocol.key_proof import (
    WITHOUT_TLS,
    Certificates,
    Challenge,
    Secret,
    Statement,
    Transcript,
    begin,
    choose_key,
    find_prover,
    proven_frame,
    read_answer,
    read_challenge,
    read_proven,
    tags_of,
)

KEY = bytes(range(32))
NONCE, TAG = "5a" * 32, "a5" * 8
CHALLENGE = Challenge(rank=1, size=4, lane=0, nonce=NONCE, keys=TAG, ephemeral="")


def transcript(
    key: bytes = KEY,
    run_id: str = "",
    challenge: Challenge = CHALLENGE,
    listener: int = 0,
    nonce: str = "00" * 32,
    certificates: Certificates = WITHOUT_TLS,
) -> Transcript:
    opened = begin(Secret(key), run_id=run_id, challenge=challenge.body(), listener=listener, certificates=certificates)
    return opened.after(Statement.CHALLENGE, nonce.encode())


# -- what a proof covers

OTHERS = {
    "key": transcript(key=bytes(32)),
    "run id": transcript(run_id="monday"),
    "dialer's rank": transcript(challenge=Challenge(2, 4, 0, NONCE, TAG, "")),
    "size": transcript(challenge=Challenge(1, 5, 0, NONCE, TAG, "")),
    "lane": transcript(challenge=Challenge(1, 4, 1, NONCE, TAG, "")),
    "dialer's random bytes": transcript(challenge=Challenge(1, 4, 0, "00" * 32, TAG, "")),
    "dialer's keys": transcript(challenge=Challenge(1, 4, 0, NONCE, 2 * TAG, "")),
    "dialer's certificate": transcript(certificates=Certificates(dialer=b"c" * 32)),
    "listener's certificate": transcript(certificates=Certificates(listener=b"c" * 32)),
    "dialer's ephemeral key": transcript(challenge=Challenge(1, 4, 0, NONCE, TAG, "e5" * 32)),
    "listener's rank": transcript(listener=1),
    "listener's random bytes": transcript(nonce="11" * 32),
    "roles": begin(Secret(KEY), run_id="", challenge=CHALLENGE.body(), listener=0).after(Statement.HELLO, b"00" * 32),
    "more words": transcript().after(Statement.HELLO, b"{}"),
    "other words": transcript().after(Statement.HELLO, b"{} "),
    "a refusal": transcript().after(Statement.HELLO, b"{}").after(Statement.REFUSED, b"{}"),
    "a welcome": transcript().after(Statement.HELLO, b"{}").after(Statement.WELCOME, b"{}"),
}


def test_both_sides_come_to_the_same_proof_and_keys() -> None:
    assert transcript().accepts(transcript().proof())
    assert transcript().keys() == transcript().keys()


def test_what_encrypts_needs_the_exchange_and_not_only_the_key_and_all_messages() -> None:
    one, other = (replace(transcript(), exchanged=bytes([n]) * 32) for n in (1, 2))
    assert len({*one.keys(), *other.keys(), *transcript().keys()}) == 6
    assert one.proof() == other.proof() == transcript().proof()
    assert one.after(Statement.HELLO, b"{}").exchanged == one.exchanged
    assert "exchanged" not in repr(one)


@pytest.mark.parametrize(("answer", "ephemeral"), [(b"00" * 32, b""), (b"00" * 32 + b"e5" * 32, b"\xe5" * 32)])
def test_the_public_key_of_a_listener_is_read(answer: bytes, ephemeral: bytes) -> None:
    assert read_answer(answer) == ephemeral


@pytest.mark.parametrize("answer", [b"", b"00" * 31, b"00" * 33, b"00" * 65, b"zz" * 64])
def test_an_answer_of_another_shape_is_refused(answer: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        read_answer(answer)


@pytest.mark.parametrize("what", OTHERS)
def test_a_proof_is_worth_nothing_where_anything_differs(what: str) -> None:
    assert not transcript().accepts(OTHERS[what].proof())
    assert not OTHERS[what].accepts(transcript().proof())
    assert not set(OTHERS[what].keys()) & set(transcript().keys())


def test_no_two_connections_share_anything_that_comes_from_the_key() -> None:
    made = [{one.proof(), *one.keys()} for one in (transcript(), *OTHERS.values())]
    assert all(len(one) == 3 for one in made)
    assert not any(one & other for one, other in combinations(made, 2))


def test_another_version_of_the_protocol_makes_other_proofs(monkeypatch: pytest.MonkeyPatch) -> None:
    before = transcript().proof()
    monkeypatch.setattr(key_proof, "VERSION", key_proof.VERSION + 1)
    assert not transcript().accepts(before)


@given(st.lists(st.binary(max_size=4), max_size=4), st.lists(st.binary(max_size=4), max_size=4))
def test_parts_cannot_be_shifted_into_each_other(one: list[bytes], other: list[bytes]) -> None:
    assert (Secret(KEY).sign(*one) == Secret(KEY).sign(*other)) is (one == other)


def test_proofs_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []
    monkeypatch.setattr(key_proof.hmac, "compare_digest", lambda one, other: bool(compared.append((one, other))))
    assert not transcript().accepts(transcript().proof())
    assert compared == [(transcript().proof(), transcript().proof())]


def test_who_answers_at_a_wrong_address_is_found_out() -> None:
    opened = [begin(Secret(KEY), run_id="", challenge=CHALLENGE.body(), listener=rank) for rank in range(4)]
    assert find_prover(opened, b"00" * 32, transcript(listener=3).proof()) == 3
    assert find_prover(opened, b"00" * 32, transcript(key=bytes(32)).proof()) is None


# -- several keys


OLD, NEW, THIRD = Secret(KEY), Secret(bytes(32)), Secret(bytes([1] * 32))


def asked_with(*secrets: Secret, nonce: str = NONCE) -> Challenge:
    return Challenge(1, 4, 0, nonce, tags_of(secrets, nonce), "")


@pytest.mark.parametrize(
    ("listener", "dialer", "chosen"),
    [
        ((OLD,), (OLD,), OLD),
        ((OLD, NEW), (OLD,), OLD),
        ((OLD, NEW), (NEW,), NEW),
        ((OLD, NEW), (NEW, OLD), OLD),
        ((NEW, OLD), (OLD, NEW), NEW),
        ((NEW, OLD), (THIRD, OLD), OLD),
        ((NEW, OLD), (THIRD,), NEW),
    ],
)
def test_the_listener_takes_its_first_key_that_the_dialer_has(
    listener: tuple[Secret, ...], dialer: tuple[Secret, ...], chosen: Secret
) -> None:
    assert choose_key(listener, read_challenge(asked_with(*dialer).body())) is chosen


def test_tags_do_not_show_that_two_connections_have_the_same_key() -> None:
    one, other = asked_with(OLD, NEW), asked_with(OLD, NEW, nonce="00" * 32)
    tags = {keys[start : start + 16] for keys in (one.keys, other.keys) for start in (0, 16)}
    assert len(tags) == 4
    assert not any(tag in transcript().proof().hex() for tag in tags)


# -- the key stays where it is


def test_a_secret_is_not_shown_copied_or_stored() -> None:
    secret = Secret(KEY)
    for shown in (repr(secret), str(secret), f"{secret}", repr(transcript()), repr([transcript()])):
        assert KEY.hex() not in shown
        assert repr(KEY)[2:20] not in shown
    for take in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="a secret stays in its process"):
            take(secret)


@pytest.mark.parametrize("length", [0, 31, 33])
def test_a_key_has_its_full_length(length: int) -> None:
    with pytest.raises(ValueError, match="a key has 32 bytes"):
        Secret(bytes(length))


# -- untrusted bytes


def test_what_is_proven_comes_back_with_its_proof() -> None:
    frame = proven_frame(FrameKind.HELLO, b"{}", transcript())
    assert read_proven(frame[HEADER_BYTES:]) == (b"{}", transcript().proof())
    assert read_challenge(CHALLENGE.body()) == CHALLENGE


@given(st.binary(max_size=300))
def test_garbage_is_a_protocol_error_and_nothing_else(garbage: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        read_challenge(garbage)
    try:
        read_proven(garbage)
    except RemoteProtocolError:
        return


@pytest.mark.parametrize(
    "change",
    [
        *({"rank": value} for value in (-1, 4, True, "1", None)),
        *({"size": value} for value in (0, 2**15 + 1)),
        *({"lane": value} for value in (-1, 257, 1.0)),
        *({"nonce": value} for value in ("", "5a" * 31, "5a" * 33, "zz" * 32, "5a " * 32, "é" * 64, 5)),
        *({"keys": value} for value in ("", "a5" * 7, "a5" * 9, 5 * TAG, "zz" * 8, "é" * 16, [TAG], None)),
        *({"ephemeral": value} for value in ("a5" * 31, "a5" * 33, "zz" * 32, "é" * 64, None)),
        {"more": 1},
    ],
)
def test_an_impossible_challenge_is_refused(change: dict[str, Any]) -> None:
    fields = {"rank": 1, "size": 4, "lane": 0, "nonce": NONCE, "keys": TAG, "ephemeral": ""} | change
    with pytest.raises(RemoteProtocolError):
        read_challenge(json.dumps(fields).encode())


@pytest.mark.parametrize("payload", [b"", b"00" * 31, b"0g" * 32, b" 0" * 32, bytes(64), b"{}" + b"00" * 31])
def test_what_carries_no_proof_is_refused(payload: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        read_proven(payload)
