"""Rings under TLS: certificates of the same authority are accepted, and everybody else learns why not."""

import asyncio
import logging
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import ringwide
from bootstrap.raw_clients import PATIENCE_SECONDS, START_SECONDS, hang_up, rest, visiting
from bootstrap.test_accept import Seats, silent_visitors
from bootstrap.test_form_ring import formed_ring, member, outcomes_of
from local_ring import free_peers
from ringwide.bootstrap import accept
from ringwide.transport.tls import tls_contexts
from transport.certificates import Authority

pytestmark = pytest.mark.usefixtures("nothing_left_behind", "start_ends_after_some_tries", "silent_ones_are_seen")


@pytest.fixture
def tls(tmp_path: Path) -> dict[str, Any]:
    return certificate(tmp_path / "ours", Authority())


def certificate(directory: Path, authority: Authority, *names: str) -> dict[str, Any]:
    directory.mkdir()
    files = authority.files_in(directory, *names)
    return {"cert": files.cert, "key": files.key, "ca": files.ca}


@pytest.mark.parametrize("lanes", [1, 2])
async def test_ranks_with_certificates_of_one_authority_form_a_ring(tls: dict[str, Any], lanes: int) -> None:
    peers = free_peers(3)
    members = [member(rank, peers, tls=tls, lanes=lanes) for rank in range(3)]
    assert await outcomes_of(*members) == [[0, 1, 2]] * 3


async def test_a_key_on_top_is_proven_as_well(tls: dict[str, Any], key_file: Path, other_key_file: Path) -> None:
    peers = free_peers(2)
    members = [member(rank, peers, tls=tls, key_file=key_file) for rank in range(2)]
    assert await outcomes_of(*members) == [[0, 1]] * 2
    keys = (key_file, other_key_file)
    _, dialer = await outcomes_of(
        *(member(rank, peers, tls=tls, key_file=keys[rank], start_timeout_seconds=START_SECONDS) for rank in range(2))
    )
    assert "does not prove that it has our key" in str(dialer)


async def test_a_certificate_without_the_key_does_not_get_in_between(tmp_path: Path, key_file: Path) -> None:
    """It meets each of the two with a certificate in order, and passes on all that they say."""
    authority, peers, (behind,) = Authority(), free_peers(2), free_peers(1)
    ours = [certificate(tmp_path / str(rank), authority) for rank in range(2)]
    files = authority.files_in(tmp_path)
    between = tls_contexts(cert=files.cert, key=files.key, ca=files.ca)
    passed_on: list[int] = []

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while words := await reader.read(4096):
                passed_on.append(len(words))
                writer.write(words)
                await writer.drain()
        await hang_up(writer)

    async def sit_between(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection(*behind.split(":"), ssl=between.dialing)
        await asyncio.gather(pass_on(reader, there[1]), pass_on(there[0], writer))

    settings = {"key_file": key_file, "same_host": "tcp", "start_timeout_seconds": START_SECONDS}
    async with await asyncio.start_server(sit_between, *peers[0].split(":"), ssl=between.listening):
        errors = await outcomes_of(
            member(0, peers, tls=ours[0], listen=behind, **settings), member(1, peers, tls=ours[1], **settings)
        )
    assert all(isinstance(error, ringwide.StartTimeout | ringwide.PeerLeft) for error in errors), errors
    assert "it does not prove that it has our key" in str(errors[1])
    assert passed_on, "it was in between"


# -- which certificate may be which rank


@pytest.mark.parametrize("with_key", [False, True])
async def test_certificates_with_the_names_of_their_ranks_form_a_ring(
    with_key: bool, tmp_path: Path, key_file: Path
) -> None:
    authority, peers = Authority(), free_peers(2)
    names = [("also.example", "A.example"), ("b.example",)]
    settings = {"key_file": key_file} if with_key else {}
    tls = [certificate(tmp_path / str(rank), authority, *names[rank]) for rank in range(2)]
    members = [
        member(rank, peers, tls={**tls[rank], "names": ["a.example", "b.example"]}, **settings) for rank in range(2)
    ]
    assert await outcomes_of(*members) == [[0, 1]] * 2


@pytest.mark.parametrize("wrong", [0, 1])
@pytest.mark.parametrize(("name", "shown"), [(("c.example",), "'c.example'"), ((), "no name")])
async def test_a_certificate_with_another_name_is_turned_away(
    wrong: int, name: tuple[str, ...], shown: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority, peers, names = Authority(), free_peers(2), ["a.example", "b.example"]
    tls = [
        certificate(tmp_path / str(rank), authority, *((names[rank],) if rank != wrong else name)) for rank in (0, 1)
    ]
    errors = await outcomes_of(
        *(
            member(rank, peers, tls={**tls[rank], "names": names}, start_timeout_seconds=START_SECONDS)
            for rank in range(2)
        )
    )
    assert all(isinstance(error, ringwide.StartTimeout | ringwide.PeerLeft) for error in errors), errors
    sentence = f"its certificate is for {shown}, but that of rank {wrong} must be for '{names[wrong]}'"
    assert len(warnings_with(caplog, sentence)) == 1
    if wrong == 1:
        assert "of another name than its tls.names has for us?" in str(errors[1])


async def test_there_must_be_a_name_for_each_rank(tls: dict[str, Any]) -> None:
    with pytest.raises(ringwide.ConfigError, match=r"tls\.names has 1 names, but the ring has 2 ranks: give one for"):
        await member(0, free_peers(2), tls={**tls, "names": ["a.example"]})


# -- what differs


async def test_disagreements_are_named_under_tls_too(tls: dict[str, Any]) -> None:
    peers = free_peers(2)
    errors = await outcomes_of(member(0, peers, tls=tls, lanes=2), member(1, peers, tls=tls, lanes=1))
    assert [(error.field, error.ours, error.theirs) for error in errors] == [("lanes", 2, 1), ("lanes", 1, 2)]


OTHER_TLS = "was it started without tls, or with a certificate of another authority?"


@pytest.mark.parametrize("with_tls", [0, 1])
async def test_tls_on_one_side_only_is_named_on_both(
    with_tls: int, tls: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    peers = free_peers(2)
    secure, plain = {"tls": tls}, {}
    settings = [secure, plain] if with_tls == 0 else [plain, secure]
    errors = await outcomes_of(
        *(member(rank, peers, start_timeout_seconds=START_SECONDS, **settings[rank]) for rank in range(2))
    )
    assert all(isinstance(error, ringwide.StartTimeout | ringwide.PeerLeft) for error in errors), errors
    dialer, listener = warnings_with(caplog, f"rank 0 at {peers[0]}"), warnings_with(caplog, "turned away")
    assert (len(dialer), len(listener)) == (1, 1)
    if with_tls == 0:
        assert "it hangs up without an answer: was it started with key_file or tls, and this rank without?" in str(
            errors[1]
        )
        assert OTHER_TLS in listener[0]
    else:
        assert OTHER_TLS in str(errors[1])
        assert "it speaks TLS: was it started with tls, and this rank without?" in listener[0]


def warnings_with(caplog: pytest.LogCaptureFixture, words: str) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno == logging.WARNING and words in record.getMessage()
    ]


async def test_a_certificate_of_another_authority_is_not_let_in(
    tls: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    peers = free_peers(2)
    other = certificate(tmp_path / "theirs", Authority())
    errors = await outcomes_of(
        member(0, peers, tls=tls, start_timeout_seconds=START_SECONDS),
        member(1, peers, tls=other, start_timeout_seconds=START_SECONDS),
    )
    assert all(isinstance(error, ringwide.StartTimeout | ringwide.PeerLeft) for error in errors), errors
    assert OTHER_TLS in str(errors[1])
    assert len(warnings_with(caplog, "turned away")) == 1


async def test_a_dialer_whom_nobody_vouches_for_is_not_let_in(tls: dict[str, Any], tmp_path: Path) -> None:
    """It trusts the listener's authority, but its own certificate is of another: TLS 1.3 tells it only afterwards."""
    peers = free_peers(2)
    other = certificate(tmp_path / "theirs", Authority())
    errors = await outcomes_of(
        member(0, peers, tls=tls, start_timeout_seconds=START_SECONDS),
        member(1, peers, tls={**other, "ca": tls["ca"]}, start_timeout_seconds=START_SECONDS),
    )
    assert all(isinstance(error, ringwide.StartTimeout | ringwide.PeerLeft) for error in errors), errors
    assert OTHER_TLS in str(errors[1])


@pytest.mark.parametrize("with_tls", [False, True])
async def test_a_formed_ring_takes_the_more_time_the_more_strangers_cost(
    with_tls: bool, tls: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A TLS handshake costs some, and the rank has made one already; a plain one costs next to nothing."""
    monkeypatch.setattr(accept, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(accept, "PAUSE_PER_COST", 1e9)
    monkeypatch.setattr(accept, "LONGEST_PAUSE_SECONDS", 10 * PATIENCE_SECONDS)
    peers = free_peers(2)
    async with formed_ring(peers, **({"tls": tls} if with_tls else {})):
        seats = Seats(monkeypatch)
        async with silent_visitors(peers[1], 5), visiting(peers[1]) as (reader, writer):
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            if not with_tls:
                await rest(reader)
            await asyncio.sleep(0.05)
        assert seats.in_all == (1 if with_tls else 6)


@pytest.mark.parametrize("noise", [b"GET / HTTP/1.1\r\n\r\n", bytes(300), b"\x16\x03\x01\x00\x05hello"])
async def test_strangers_do_not_disturb(noise: bytes, tls: dict[str, Any]) -> None:
    peers = free_peers(2)
    first = asyncio.create_task(member(0, peers, tls=tls))
    async with visiting(peers[0]) as (reader, writer):
        writer.write(noise)
        assert len(await rest(reader)) <= 7, "an alert at most"
        assert not first.done()
        assert await outcomes_of(first, member(1, peers, tls=tls)) == [[0, 1]] * 2
