"""Handshakes with a key, and attacks on them: replays, reflections, other keys, no keys."""

import asyncio
import hmac
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import ringwide
from bootstrap.raw_clients import (
    CHALLENGE,
    HELLO,
    PATIENCE_SECONDS,
    REFUSED,
    START_SECONDS,
    VERSION,
    WELCOME,
    frame,
    hang_up,
    hello,
    read_words,
    rest,
    visiting,
)
from bootstrap.test_form_ring import formed_ring, member, outcomes_of
from local_ring import error_of, free_peers
from ringwide.bootstrap.protection import make_key_file
from ringwide.protocol.key_proof import Transcript
from ringwide.transport.aead_wire import EncryptedWire

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
NONCE = "5a" * 32
CUT_OFF = (asyncio.IncompleteReadError, ConnectionResetError)
pytestmark = pytest.mark.usefixtures("nothing_left_behind", "start_ends_after_some_tries")


def proof(key_file: Path, *parts: bytes, run_id: bytes = b"", version: int = VERSION) -> bytes:
    """As docs/wire.md has it, made by hand."""
    return signed(key_file, b"proof", b"ringwide handshake", bytes([version]), run_id, b"", b"", *parts)


def signed(key_file: Path, *parts: bytes) -> bytes:
    key = bytes.fromhex(key_file.read_text().split()[1])
    return hmac.digest(key, b"".join(len(part).to_bytes(4, "little") + part for part in parts), "sha256").hex().encode()


def tag(key_file: Path, nonce: str = NONCE) -> str:
    """As docs/wire.md has it, made by hand."""
    return signed(key_file, b"key", b"ringwide handshake", bytes([VERSION]), nonce.encode())[:16].decode()


def challenge(rank: int = 1, *, size: int = 2, lane: int = 0, nonce: str = NONCE, keys: str = "a5" * 8) -> bytes:
    """Tags of keys only help a listener that has several to choose one."""
    return json.dumps(
        {"rank": rank, "size": size, "lane": lane, "nonce": nonce, "keys": keys, "ephemeral": ""}
    ).encode()


def fields(peers: list[str], **changes: Any) -> dict[str, Any]:
    """What a rank with default settings says of itself."""
    plan = {"segment_bytes": 2**20, "lanes": 1, "messages": False, "algorithm": "auto", "tree_bytes": "auto"}
    numbers = {"half_precision": "float32", "codec": "none", "allow_lossy": None, "threshold_bytes": None}
    settings = {**plan, **numbers, "encrypt": False, "tls": False, "run_id": ""}
    said = {
        "rank": 1,
        "size": 2,
        "lane": 0,
        "peers": "\n".join(peers),
        "settings": settings,
        "checksum": False,
        "shares": False,
    }
    return {**said, **changes}


# -- those who have the key


@pytest.mark.parametrize("settings", [{}, {"encrypt": True}, {"run_id": "monday"}, {"lanes": 2, "checksum": True}])
async def test_ranks_with_the_same_key_form_a_ring(key_file: Path, settings: dict[str, Any]) -> None:
    peers = free_peers(3)
    members = [member(rank, peers, key_file=key_file, **settings) for rank in range(3)]
    assert await outcomes_of(*members) == [[0, 1, 2]] * 3


async def test_the_variable_names_the_key_file_too(key_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peers = free_peers(2)
    with_file = member(1, peers, key_file=key_file)
    monkeypatch.setenv("RINGWIDE_KEY_FILE", str(key_file))
    assert await outcomes_of(member(0, peers), with_file) == [[0, 1]] * 2


@pytest.mark.parametrize("padding", [0, 2500])
async def test_a_dialer_made_by_hand_from_the_document_is_let_in(padding: int, key_file: Path) -> None:
    """So the document is right, and the tests below fail only where they mean to."""
    peers = free_peers(2)
    listener = asyncio.create_task(member(0, peers, key_file=key_file))
    async with visiting(peers[0]) as streams:
        kind, answer = await say_hello(streams, peers, key_file, of=challenge() + b" " * padding)
        assert kind == WELCOME
        assert json.loads(answer)["rank"] == 0
    assert isinstance(await error_of(listener), ringwide.PeerLost), "it was let in, and then it went"


async def test_a_listener_with_two_keys_takes_the_one_that_the_dialer_names(
    key_file: Path, other_key_file: Path
) -> None:
    peers, both = free_peers(2), joined(key_file, other_key_file)
    listener = asyncio.create_task(member(0, peers, key_file=both))
    async with visiting(peers[0]) as streams:
        kind, _ = await say_hello(streams, peers, other_key_file, of=challenge(keys=tag(other_key_file)))
        assert kind == WELCOME
    assert isinstance(await error_of(listener), ringwide.PeerLost), "it was let in, and then it went"


def joined(*files: Path) -> Path:
    """A key file with the keys of all of these, in this order."""
    path = files[0].with_name("+".join(file.stem for file in files))
    path.touch(0o600)
    path.write_text("".join(file.read_text() for file in files))
    return path


async def nothing() -> None:
    pass


async def say_hello(
    streams: Streams,
    peers: list[str],
    key_file: Path,
    *,
    of: bytes,
    before_hello: Callable[[], Awaitable[None]] = nothing,
) -> tuple[int, bytes]:
    """The dialer's side, by hand: CHALLENGE, HELLO, and what comes back, whose proof is checked."""
    reader, writer = streams
    asked, said = of, json.dumps(fields(peers)).encode()
    writer.write(frame(CHALLENGE, asked))
    _, kind, answer = await read_words(reader)
    assert kind == CHALLENGE
    nonce, their_proof = answer[:-64], answer[-64:]
    spoken = [asked, b"0", b"the listener asks back", nonce]
    assert their_proof == proof(key_file, *spoken)
    spoken += [b"the dialer introduces itself", said]
    await before_hello()
    writer.write(frame(HELLO, said + proof(key_file, *spoken)))
    _, kind, answer = await read_words(reader)
    spoken += [b"the listener lets the dialer in" if kind == WELCOME else b"the listener turns the dialer away"]
    assert answer[-64:] == proof(key_file, *spoken, answer[:-64])
    return kind, answer[:-64]


@pytest.mark.parametrize(
    ("field", "ours", "theirs"), [("segment_bytes", 8192, 4096), ("encrypt", True, False), ("lanes", 2, 1)]
)
async def test_what_two_with_the_key_disagree_on_is_named_on_both_sides(
    key_file: Path, field: str, ours: Any, theirs: Any
) -> None:
    peers = free_peers(2)
    errors = await outcomes_of(
        member(0, peers, key_file=key_file, **{field: ours}), member(1, peers, key_file=key_file, **{field: theirs})
    )
    assert all(isinstance(error, ringwide.Disagreement) for error in errors), errors
    assert [(error.field, error.ours, error.theirs) for error in errors] == [
        (field, ours, theirs),
        (field, theirs, ours),
    ]


async def test_a_connection_recorded_cannot_be_decrypted_by_who_gets_the_key(
    key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that can be computed from the key and the messages is computed, and none of it is a key that encrypts."""
    used: set[bytes] = set()
    known: set[bytes] = set()
    make, keys = EncryptedWire.__init__, Transcript.keys

    def noted(wire: EncryptedWire, sock: Any, send_key: bytes, receive_key: bytes) -> None:
        used.update((send_key, receive_key))
        make(wire, sock, send_key, receive_key)

    def guessed(transcript: Transcript) -> tuple[bytes, bytes]:
        known.update(keys(replace(transcript, exchanged=b"")))
        known.update(transcript.secret.sign(label, *transcript.messages) for label in (b"dialer sends", b"keys"))
        return keys(transcript)

    monkeypatch.setattr(EncryptedWire, "__init__", noted)
    monkeypatch.setattr(Transcript, "keys", guessed)
    peers = free_peers(2)
    assert (
        await outcomes_of(*(member(rank, peers, key_file=key_file, encrypt=True) for rank in range(2))) == [[0, 1]] * 2
    )
    assert used
    assert known
    assert not used & known


async def test_an_exchange_whose_result_everybody_knows_is_refused(key_file: Path) -> None:
    """A public key of zeros, by hand and with a right proof: somebody has the key, but wants no secrecy."""
    peers = free_peers(2)
    listener = asyncio.create_task(member(0, peers, key_file=key_file, encrypt=True))
    asked = json.dumps({**json.loads(challenge()), "ephemeral": "00" * 32}).encode()
    async with visiting(peers[0]) as streams:
        with pytest.raises(CUT_OFF):
            await say_hello(streams, peers, key_file, of=asked)
    assert await outcomes_of(listener, member(1, peers, key_file=key_file, encrypt=True)) == [[0, 1]] * 2


# -- those who change their key: old, old+new, new+old, new


STEPS = ("old", "old+new", "new+old", "new")


@pytest.mark.parametrize("encrypt", [False, True])
@pytest.mark.parametrize(("one", "other"), [pair for pair in product(STEPS, STEPS) if {*pair} != {"old", "new"}])
async def test_ranks_at_different_steps_of_a_change_connect(
    one: str, other: str, encrypt: bool, key_file: Path, other_key_file: Path
) -> None:
    files, peers = step_files(key_file, other_key_file), free_peers(2)
    members = [member(rank, peers, key_file=files[step], encrypt=encrypt) for rank, step in enumerate((one, other))]
    assert await outcomes_of(*members) == [[0, 1]] * 2


@pytest.mark.parametrize(("one", "other"), [("old", "new"), ("new", "old"), ("old+new", "third"), ("third", "new+old")])
async def test_ranks_without_a_common_key_do_not_connect(
    one: str, other: str, key_file: Path, other_key_file: Path, tmp_path: Path
) -> None:
    make_key_file(tmp_path / "third")
    files, peers = {**step_files(key_file, other_key_file), "third": tmp_path / "third"}, free_peers(2)
    _, dialer = await both_refused(
        member(0, peers, key_file=files[one], start_timeout_seconds=START_SECONDS),
        member(1, peers, key_file=files[other], start_timeout_seconds=START_SECONDS),
    )
    assert "it does not prove that it has our key: was it started with another key_file or run_id?" in dialer


def step_files(old: Path, new: Path) -> dict[str, Path]:
    return {"old": old, "old+new": joined(old, new), "new+old": joined(new, old), "new": new}


# -- those who are started with another key, or none


async def both_refused(one: Any, other: Any) -> tuple[str, str]:
    errors = await outcomes_of(one, other)
    assert all(isinstance(error, ringwide.StartTimeout | ringwide.PeerLeft) for error in errors), errors
    return str(errors[0]), str(errors[1])


async def test_another_key_is_named_at_once_and_at_the_end(
    key_file: Path, other_key_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    peers = free_peers(2)
    _, dialer = await both_refused(
        member(0, peers, key_file=key_file, start_timeout_seconds=START_SECONDS),
        member(1, peers, key_file=other_key_file, start_timeout_seconds=START_SECONDS),
    )
    words = "it does not prove that it has our key: was it started with another key_file or run_id?"
    assert f"rank 0 ({peers[0]}; {words})" in dialer
    assert warnings_of(caplog) == {
        f"rank 0 at {peers[0]}: {words}",
        "rank 0 turned away a connection from 127.0.0.1: it left after it got our proof: was it started with another "
        "key_file or run_id?",
    }


def warnings_of(caplog: pytest.LogCaptureFixture) -> set[str]:
    """Each only once, however often it happened."""
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(lines) == len(set(lines))
    return set(lines)


async def test_another_run_with_the_same_key_is_not_let_in(key_file: Path) -> None:
    peers = free_peers(2)
    _, dialer = await both_refused(
        member(0, peers, key_file=key_file, run_id="monday", start_timeout_seconds=START_SECONDS),
        member(1, peers, key_file=key_file, run_id="tuesday", start_timeout_seconds=START_SECONDS),
    )
    assert "it does not prove that it has our key" in dialer


async def test_without_a_key_another_run_is_a_disagreement() -> None:
    peers = free_peers(2)
    errors = await outcomes_of(member(0, peers, run_id="monday"), member(1, peers, run_id="tuesday"))
    assert [(error.field, error.ours, error.theirs) for error in errors] == [
        ("run_id", "monday", "tuesday"),
        ("run_id", "tuesday", "monday"),
    ]


async def test_a_dialer_with_a_key_and_a_listener_without(key_file: Path, caplog: pytest.LogCaptureFixture) -> None:
    peers = free_peers(2)
    listener, dialer = await outcomes_of(
        member(0, peers, start_timeout_seconds=START_SECONDS),
        member(1, peers, key_file=key_file, start_timeout_seconds=START_SECONDS),
    )
    assert isinstance(listener, ringwide.Disagreement)
    assert str(listener) == ("key_file: this is rank 0 with 'no key', but rank 1 has 'a key'; start both with the same")
    words = "it does not prove that it has our key: was it started without key_file?"
    assert isinstance(dialer, ringwide.StartTimeout), "what a listener without proof says decides nothing"
    assert f"rank 0 ({peers[0]}; {words})" in str(dialer)
    assert warnings_of(caplog) == {f"rank 0 at {peers[0]}: {words}"}


async def test_a_dialer_without_a_key_and_a_listener_with(key_file: Path, caplog: pytest.LogCaptureFixture) -> None:
    peers = free_peers(2)
    _, dialer = await both_refused(
        member(0, peers, key_file=key_file, start_timeout_seconds=START_SECONDS),
        member(1, peers, start_timeout_seconds=START_SECONDS),
    )
    words = "it hangs up without an answer: was it started with key_file or tls, and this rank without?"
    assert f"rank 0 ({peers[0]}; {words})" in dialer
    assert warnings_of(caplog) == {
        f"rank 0 at {peers[0]}: {words}",
        "rank 0 turned away a connection from 127.0.0.1: it does not ask for a proof, nor give one: was it started "
        "without key_file?",
    }


async def test_a_rank_at_anothers_address_is_named_and_told_nothing(
    key_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As when somebody leads our connection astray: refused, but no reason to give up."""
    peers = free_peers(3)
    errors = await outcomes_of(
        member(1, peers, key_file=key_file, listen=peers[0], start_timeout_seconds=START_SECONDS),
        member(2, peers, key_file=key_file, start_timeout_seconds=START_SECONDS),
    )
    assert all(isinstance(error, ringwide.StartTimeout) for error in errors)
    words = "it proves to be rank 1: is the peers file right, and was each rank started once?"
    assert f"rank 0 ({peers[0]}; {words})" in str(errors[1])
    assert f"rank 0 at {peers[0]}: {words}" in {record.getMessage() for record in caplog.records}


# -- strangers: the ring goes on, and they learn nothing


@asynccontextmanager
async def undisturbed(peers: list[str], key_file: Path, *, formed: bool) -> AsyncIterator[None]:
    """A ring of two that has formed, or is about to: rank 1 comes only after the block."""
    if formed:
        async with formed_ring(peers, key_file=key_file):
            yield
        return
    first = asyncio.create_task(member(0, peers, key_file=key_file))
    try:
        yield
        assert not first.done()
    finally:
        assert await outcomes_of(first, member(1, peers, key_file=key_file)) == [[0, 1]] * 2


SILENCE: dict[str, bytes] = {
    "a hello without a proof": hello(fields([])),
    "a hello of another version": hello({"of": "the future"}, version=VERSION + 1),
    "a challenge of another version": frame(CHALLENGE, challenge(), version=VERSION - 1),
    "a welcome": frame(WELCOME, b"{}"),
    "a challenge that is none": frame(CHALLENGE, b"{}"),
    "a challenge with half a nonce": frame(CHALLENGE, challenge(nonce="5a" * 16)),
    "a challenge of 4 KiB": frame(CHALLENGE, b" " * 4096),
    "http": b"GET / HTTP/1.1\r\nHost: somewhere.example\r\n\r\n",
}


@pytest.mark.parametrize("noise", SILENCE.values(), ids=SILENCE)
async def test_who_does_not_even_ask_for_a_proof_hears_nothing(noise: bytes, key_file: Path) -> None:
    peers = free_peers(2)
    async with undisturbed(peers, key_file, formed=False), visiting(peers[0]) as (reader, writer):
        writer.write(noise)
        assert await rest(reader) == b""


@pytest.mark.parametrize("formed", [False, True])
@pytest.mark.parametrize(
    "how",
    [
        pytest.param({"key": "other"}, id="another key"),
        pytest.param({"run_id": b"tuesday"}, id="another run"),
        pytest.param({"version": VERSION - 1}, id="another version"),
        pytest.param({"listener": b"1"}, id="another listener's rank"),
        pytest.param({"said_by": b"the listener lets the dialer in"}, id="another role"),
        pytest.param({"lane": 1}, id="another lane"),
        pytest.param({"no proof": True}, id="no proof"),
        pytest.param({"reflected": True}, id="the listener's own proof"),
    ],
)
async def test_a_wrong_proof_is_not_answered(
    how: dict[str, Any], formed: bool, key_file: Path, other_key_file: Path
) -> None:
    peers = free_peers(2)
    async with undisturbed(peers, key_file, formed=formed), visiting(peers[0]) as (reader, writer):
        asked, said = challenge(), json.dumps(fields(peers)).encode()
        writer.write(frame(CHALLENGE, asked))
        _, _, answer = await read_words(reader)
        spoken = [
            challenge(lane=how.get("lane", 0)),
            how.get("listener", b"0"),
            *(b"the listener asks back", answer[:-64]),
            *(how.get("said_by", b"the dialer introduces itself"), said),
        ]
        signed_with = other_key_file if "key" in how else key_file
        made = proof(signed_with, *spoken, run_id=how.get("run_id", b""), version=how.get("version", VERSION))
        made = answer[-64:] if "reflected" in how else b"" if "no proof" in how else made
        writer.write(frame(HELLO, said + made))
        assert await rest(reader) == b""


async def test_a_replay_is_not_answered(key_file: Path) -> None:
    """All that an honest dialer once said, word for word, to the same listener."""
    peers, recorded = free_peers(2), b""
    listener = asyncio.create_task(member(0, peers, key_file=key_file))
    async with visiting(peers[0]) as (reader, writer):
        asked, said = challenge(), json.dumps(fields(peers)).encode()
        recorded = frame(CHALLENGE, asked)
        writer.write(recorded)
        _, _, answer = await read_words(reader)
        spoken = [asked, b"0", b"the listener asks back", answer[:-64], b"the dialer introduces itself", said]
        recorded += frame(HELLO, said + proof(key_file, *spoken))
        writer.write(recorded[len(frame(CHALLENGE, asked)) :])
        assert (await read_words(reader))[1] == WELCOME
    await error_of(listener)

    async with undisturbed(peers, key_file, formed=False), visiting(peers[0]) as (reader, writer):
        writer.write(recorded)
        assert (await read_words(reader))[1] == CHALLENGE
        assert await rest(reader) == b""


async def test_a_proof_for_one_lane_or_rank_opens_no_other(key_file: Path) -> None:
    """The HELLO is proven, but says something else than the CHALLENGE did."""
    peers = free_peers(2)
    async with undisturbed(peers, key_file, formed=False):
        for asked in (challenge(lane=1), challenge(0), challenge(2, size=3)):
            async with visiting(peers[0]) as (reader, writer):
                with pytest.raises(CUT_OFF):
                    await say_hello((reader, writer), peers, key_file, of=asked)


async def test_a_handshake_has_4_kib_in_all(key_file: Path) -> None:
    """Each frame is short enough and the proof is right, but together they are too long."""
    peers = free_peers(2)
    async with undisturbed(peers, key_file, formed=False), visiting(peers[0]) as streams:
        with pytest.raises(CUT_OFF):
            await say_hello(streams, peers, key_file, of=challenge() + b" " * 3500)


@pytest.mark.parametrize("answer", ["welcome", "refused", "reflected", "other version", "swapped"])
async def test_a_dialer_is_not_taken_in_by_an_answer_without_a_proof(answer: str, key_file: Path) -> None:
    """Somebody listens at rank 0's address until the dialer has heard it, and goes: then the true rank 0 comes."""
    peers, heard = free_peers(2), asyncio.Event()
    answers = {
        "welcome": hello(fields(peers, rank=0), kind=WELCOME),
        "refused": hello({"field": "lanes", "dialer": 1, "listener": 2}, kind=REFUSED),
        "other version": hello({"field": "protocol version", "dialer": 1, "listener": 2}, kind=REFUSED, version=9),
    }

    async def pretend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _, kind, asked = await read_words(reader)
        assert kind == CHALLENGE
        theirs = b"00" * 32 + proof(key_file, asked, b"1", b"the listener asks back", b"00" * 32)  # rank 1's own
        swapped = frame(CHALLENGE, theirs)
        writer.write(answers.get(answer, frame(CHALLENGE, asked) if answer == "reflected" else swapped))
        assert await rest(reader) == b"", "nothing more is said to it"
        await hang_up(writer)
        heard.set()

    host, _, port = peers[0].rpartition(":")
    async with await asyncio.start_server(pretend, host, int(port)):
        dialer = asyncio.create_task(member(1, peers, key_file=key_file))
        async with asyncio.timeout(PATIENCE_SECONDS):
            await heard.wait()
        assert not dialer.done()
    assert await outcomes_of(member(0, peers, key_file=key_file), dialer) == [[0, 1]] * 2
