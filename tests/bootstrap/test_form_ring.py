"""Formation of a ring by ranks that fit, by ranks that do not, and with unknown clients, over real connections."""

import asyncio
import logging
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ringwide
from bootstrap.raw_clients import (
    HELLO,
    PATIENCE_SECONDS,
    REFUSED,
    VERSION,
    WELCOME,
    frame,
    hang_up,
    hello,
    read_frame,
    rest,
    visiting,
)
from local_ring import error_of, free_peers
from ringwide import RingConfig
from ringwide.bootstrap import form_ring
from ringwide.bootstrap.protection import make_key_file

pytestmark = pytest.mark.usefixtures("nothing_left_behind", "silent_ones_are_seen")


async def member(rank: int, peers: list[str], **settings: Any) -> list[int]:
    """Join, see everybody, leave."""
    settings = {"start_timeout_seconds": PATIENCE_SECONDS, **settings}
    async with ringwide.join(rank=rank, peers=peers, config=RingConfig(**settings)) as ring:
        return [int(part[0]) for part in await ring.all_gather(np.array([rank]))]


async def outcomes_of(*members: Any) -> list[Any]:
    async with asyncio.timeout(2 * PATIENCE_SECONDS):
        return await asyncio.gather(*members, return_exceptions=True)


# -- coming together


@pytest.mark.parametrize("seed", range(4))
async def test_ranks_may_start_in_any_order(seed: int) -> None:
    chance = random.Random(seed)
    size = chance.randint(2, 6)
    peers = free_peers(size)
    tasks = []
    for rank in chance.sample(range(size), size):
        tasks.append(asyncio.create_task(member(rank, peers, lanes=1 + seed % 3)))
        for _ in range(chance.randint(0, 30)):
            await asyncio.sleep(0)
    assert await outcomes_of(*tasks) == [list(range(size))] * size


async def test_a_ring_of_one_needs_nobody() -> None:
    assert await member(0, free_peers(1)) == [0]


async def test_names_and_other_addresses_of_loopback_will_do() -> None:
    ports = [peer.rpartition(":")[2] for peer in free_peers(2)]
    peers = [f"localhost:{ports[0]}", f"127.0.0.2:{ports[1]}"]
    assert await outcomes_of(member(0, peers), member(1, peers)) == [[0, 1]] * 2


async def test_listen_says_where_when_the_peers_file_does_not() -> None:
    """As behind a forwarded port: rank 1 dials an address at which rank 0 does not listen itself."""
    peers, (inner,) = free_peers(2), free_peers(1)
    forwarding = asyncio.create_task(forward(peers[0], inner, connections=2))
    assert await outcomes_of(member(0, peers, listen=inner), member(1, peers)) == [[0, 1]] * 2
    await forwarding


async def forward(outer: str, inner: str, *, connections: int) -> None:
    host, _, port = outer.rpartition(":")
    done: asyncio.Queue[None] = asyncio.Queue()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            return
        finally:
            await hang_up(writer)

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with visiting(inner) as (far_reader, far_writer):
            await asyncio.gather(copy(reader, far_writer), copy(far_reader, writer))
        done.put_nowait(None)

    async with await asyncio.start_server(connect, host, int(port)):
        for _ in range(connections):
            await done.get()


# -- those who do not come

NOBODY, NOT_YET = "nobody listens there yet", "it has not called here yet"


async def test_a_rank_that_was_turned_away_is_told_of_while_others_wait_for_it(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    keys = [tmp_path / "one.key", tmp_path / "other.key"]
    for key in keys:
        make_key_file(key)
    peers = free_peers(2)
    errors = await outcomes_of(
        *(member(rank, peers, start_timeout_seconds=2, key_file=str(keys[rank])) for rank in range(2))
    )
    for error in errors:
        assert isinstance(error, ringwide.StartTimeout)
        assert "was it started with another key_file or run_id?" in str(error)


async def test_the_start_timeout_names_who_is_missing_and_where() -> None:
    peers = free_peers(4)
    errors = await outcomes_of(*(member(rank, peers, start_timeout_seconds=1.5) for rank in (0, 2)))
    for error in errors:
        assert isinstance(error, ringwide.StartTimeout | ringwide.PeerLeft)
        for missing in (1, 3):
            assert f"rank {missing} ({peers[missing]}; " in str(error)
    timeouts = [error for error in errors if isinstance(error, ringwide.StartTimeout)]
    assert timeouts
    why = {1: NOBODY if timeouts[0].rank == 2 else NOT_YET, 3: NOT_YET}
    assert timeouts[0].missing == tuple(f"rank {missing} ({peers[missing]}; {why[missing]})" for missing in (1, 3))
    assert "1.5 s (start_timeout_seconds)" in str(timeouts[0])


async def test_while_a_rank_waits_it_says_for_whom(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(form_ring, "REMIND_SECONDS", 0.05)
    peers = free_peers(3)
    first = asyncio.create_task(member(0, peers))
    await until_logged(caplog, f"rank 0 is waiting for rank 1 ({peers[1]}; {NOT_YET}), rank 2 ({peers[2]}; {NOT_YET})")
    second = asyncio.create_task(member(1, peers))
    await until_logged(caplog, f"rank 0 is waiting for rank 2 ({peers[2]}; {NOT_YET})")
    await until_logged(caplog, f"rank 1 is waiting for rank 2 ({peers[2]}; {NOT_YET})")
    assert await outcomes_of(first, second, member(2, peers)) == [[0, 1, 2]] * 3
    caplog.clear()
    await asyncio.sleep(3 * form_ring.REMIND_SECONDS)
    assert caplog.records == [], "nobody waits any more"


async def until_logged(caplog: pytest.LogCaptureFixture, words: str) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while ("ringwide.bootstrap", logging.WARNING, words) not in caplog.record_tuples:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_rank_that_is_cancelled_while_it_waits_leaves_nothing_behind() -> None:
    peers = free_peers(3)
    waiting = [asyncio.create_task(member(rank, peers)) for rank in (0, 2)]
    async with visiting(peers[0]) as (reader, _):
        for task in waiting:
            task.cancel()
        assert all(isinstance(outcome, asyncio.CancelledError) for outcome in await outcomes_of(*waiting))
        assert await rest(reader) == b""


async def test_an_address_that_does_not_resolve_is_an_error_at_once() -> None:
    peers = ["no-such-host.invalid:5000", *free_peers(1)]
    error = await error_of(member(1, peers))
    assert isinstance(error, ringwide.AddressError)
    assert error.address == peers[0]
    assert "'no-such-host.invalid' does not resolve" in str(error)


async def test_a_port_in_use_is_an_error_at_once() -> None:
    peers = free_peers(2)
    first = asyncio.create_task(member(0, peers))
    async with visiting(peers[0]):
        pass
    error = await error_of(member(0, peers))
    assert isinstance(error, ringwide.AddressError)
    assert f"rank 0 cannot listen on {peers[0]}: the port is in use" in str(error)
    assert await outcomes_of(first, member(1, peers)) == [[0, 1]] * 2, "the first one is not disturbed"


async def test_listening_beyond_loopback_without_a_word_is_refused() -> None:
    error = await error_of(member(0, ["0.0.0.0:5000", *free_peers(1)]))
    assert isinstance(error, ringwide.ConfigError)
    assert "beyond loopback" in str(error)


# -- those who were started differently


async def disagreeing(one: Any, other: Any) -> list[ringwide.Disagreement]:
    """Both errors; the one that did not see the difference itself may have been told goodbye with it."""
    errors = await outcomes_of(one, other)
    assert all(isinstance(error, ringwide.Disagreement) for error in errors), errors
    return errors


@pytest.mark.parametrize(
    ("field", "ours", "theirs"),
    [
        ("segment_bytes", 8192, 4096),
        ("lanes", 2, 1),
        ("algorithm", "ring", "auto"),
        ("tree_bytes", 5, 6),
        ("tree_bytes", 256 * 1024, "auto"),
        ("half_precision", "native", "float32"),
    ],
)
@pytest.mark.parametrize("late", [0, 1])
async def test_different_settings_are_named_on_both_sides(field: str, ours: Any, theirs: Any, late: int) -> None:
    peers = free_peers(2)
    members = [member(0, peers, **{field: ours}), member(1, peers, **{field: theirs})]
    if late == 0:
        members.reverse()
    errors = sorted(await disagreeing(*members), key=lambda error: error.rank)
    assert [(error.field, error.ours, error.theirs) for error in errors] == [
        (field, ours, theirs),
        (field, theirs, ours),
    ]
    for error, peer in zip(errors, ("rank 1", "rank 0"), strict=True):
        assert str(error) == (
            f"{field}: this is rank {error.rank} with {error.ours!r}, but {peer} has {error.theirs!r}; "
            "start both with the same"
        )


async def test_different_addresses_are_named_on_both_sides() -> None:
    peers = free_peers(3)
    others = [peers[0], peers[1], "127.0.0.1:9"]
    errors = await disagreeing(member(0, peers), member(1, others))
    assert {error.field for error in errors} == {"address of rank 2 in the peers file"}
    assert [(error.ours, error.theirs) for error in errors] == [(peers[2], others[2]), (others[2], peers[2])]


async def test_long_lists_of_peers_are_compared_too() -> None:
    peers = free_peers(2) + [f"127.100.100.100:{port}" for port in range(50_000, 50_200)]
    others = [*peers[:-1], "127.100.100.101:50000"]
    errors = await disagreeing(member(0, peers), member(1, others))
    assert all("peers file" in error.field for error in errors)


async def test_a_name_that_only_others_would_dial_must_resolve_too() -> None:
    peers = [*free_peers(1), "no-such-host.invalid:5000"]
    error = await error_of(member(0, peers))
    assert isinstance(error, ringwide.AddressError)
    assert "no-such-host.invalid" in str(error)


async def test_different_sizes_are_named_on_both_sides() -> None:
    peers = free_peers(3)
    errors = await disagreeing(member(0, peers), member(1, peers[:2]))
    assert {error.field for error in errors} == {"size of the ring (lines in the peers file)"}
    assert [(error.ours, error.theirs) for error in errors] == [(3, 2), (2, 3)]


async def test_a_rank_that_was_started_twice_is_named_on_both_sides(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On two machines: each listens elsewhere, so only rank 0 can notice."""
    monkeypatch.setattr(form_ring, "REMIND_SECONDS", 0.05)
    peers, elsewhere = free_peers(3), free_peers(1)
    zero, first = (asyncio.create_task(member(rank, peers)) for rank in (0, 1))
    await until_logged(caplog, f"rank 0 is waiting for rank 2 ({peers[2]}; {NOT_YET})")
    second, zero_says, first_says = await outcomes_of(member(1, peers, listen=elsewhere[0]), zero, first)
    for error in (second, zero_says):
        assert isinstance(error, ringwide.Disagreement)
        assert error.field == "rank (each rank must be started once)"
        assert {str(error.ours), str(error.theirs)} == {
            "a second rank 1 (from 127.0.0.1)",
            "a rank 1 that has joined already",
        }
    assert isinstance(first_says, ringwide.PeerLeft)
    assert "each rank must be started once" in str(first_says)


async def test_a_rank_that_answers_at_anothers_address_is_named() -> None:
    """Rank 2 dials what its peers file calls rank 0, and rank 1 answers; or rank 1 is quicker, and meets itself."""
    peers = free_peers(3)
    errors = await outcomes_of(
        member(1, peers, listen=peers[0], start_timeout_seconds=3), member(2, peers, start_timeout_seconds=3)
    )
    assert all(isinstance(error, ringwide.JoinError | ringwide.PeerLeft) for error in errors), errors
    named = {error.field for error in errors if isinstance(error, ringwide.Disagreement)}
    assert named & {f"rank at {peers[0]} in the peers file", "rank (each rank must be started once)"}


# -- another version of the protocol


async def test_a_dialer_of_another_version_is_refused_and_both_know_why() -> None:
    peers = free_peers(2)
    listener = asyncio.create_task(member(0, peers))
    async with visiting(peers[0]) as (reader, writer):
        writer.write(hello({"of": "the future"}, version=VERSION + 8))
        version, kind, difference = await read_frame(reader)
        assert (version, kind) == (VERSION, REFUSED)
        assert difference == {"field": "protocol version", "dialer": VERSION + 8, "listener": VERSION}
        error = await error_of(listener)
        assert isinstance(error, ringwide.Disagreement)
        assert (error.field, error.ours, error.theirs) == ("protocol version", VERSION, VERSION + 8)
        assert await rest(reader) == b""


@pytest.mark.parametrize(
    "answer",
    [
        hello({"of": "the future"}, kind=WELCOME, version=VERSION + 8),
        hello({"field": "protocol version", "dialer": VERSION, "listener": VERSION + 8}, kind=REFUSED),
    ],
    ids=["in its own words", "in ours"],
)
async def test_a_listener_of_another_version_is_an_error_for_the_dialer(answer: bytes) -> None:
    peers = free_peers(2)
    heard: asyncio.Queue[Any] = asyncio.Queue()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.put_nowait(await read_frame(reader))
        writer.write(answer)
        await rest(reader)
        await hang_up(writer)

    host, _, port = peers[0].rpartition(":")
    async with await asyncio.start_server(listen, host, int(port)):
        error = await error_of(member(1, peers))
        assert isinstance(error, ringwide.Disagreement)
        assert (error.field, error.ours, error.theirs) == ("protocol version", VERSION, VERSION + 8)
        version, kind, fields = heard.get_nowait()
    assert (version, kind, fields["rank"], fields["size"], fields["lane"]) == (VERSION, HELLO, 1, 2, 0)


# -- strangers

FIELDS = {"rank": 1, "size": 2, "lane": 0, "peers": "", "settings": {}, "checksum": False, "shares": False}
NOISE = {
    "http": b"GET / HTTP/1.1\r\nHost: somewhere.example\r\n\r\n",
    "tls": bytes.fromhex("1603010200010001fc0303") + bytes(64),
    "zeros": bytes(1000),
    "half a header": frame(HELLO, b"")[:10],
    "a frame without JSON": frame(HELLO, b"not json"),
    "deep JSON": frame(HELLO, b"[" * 4000),
    "JSON of another kind": frame(HELLO, b"[1, 2]"),
    "missing fields": hello({"rank": 1}),
    "fields of the wrong type": hello({**FIELDS, "rank": "1"}),
    "an impossible rank": hello({**FIELDS, "rank": -1}),
    "settings that nest": hello({**FIELDS, "settings": {"lanes": [[]]}}),
    "a welcome out of the blue": frame(WELCOME, b"{}"),
    "data before a handshake": frame(16, b""),
    "a huge claim": frame(HELLO, b"")[:-4] + b"\xff\xff\xff\xff",
}


@pytest.mark.parametrize("noise", NOISE.values(), ids=NOISE)
async def test_a_stranger_that_talks_nonsense_is_cut_off_and_disturbs_nobody(noise: bytes) -> None:
    peers = free_peers(2)
    first = asyncio.create_task(member(0, peers))
    async with visiting(peers[0]) as (reader, writer):
        writer.write(noise)
        if noise == NOISE["half a header"]:
            writer.write_eof()
        assert await rest(reader) == b""
        assert not first.done()
        assert await outcomes_of(first, member(1, peers)) == [[0, 1]] * 2


async def test_strangers_that_say_nothing_disturb_nobody_and_are_sent_away_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(form_ring, "HANDSHAKE_SECONDS", 100 * PATIENCE_SECONDS)
    peers = free_peers(2)
    first = asyncio.create_task(member(0, peers))
    async with visiting(peers[0]) as (one, _), visiting(peers[0]) as (other, _):
        assert await outcomes_of(first, member(1, peers)) == [[0, 1]] * 2
        assert await rest(one) == await rest(other) == b""


async def test_a_peer_that_went_away_during_the_handshake_may_come_again() -> None:
    """The dialer's side: what first answered at the address was not the peer, or died while answering."""
    peers = free_peers(2)
    cut_off = asyncio.Event()

    async def hang_up_on_them(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        await hang_up(writer)
        cut_off.set()

    host, _, port = peers[0].rpartition(":")
    async with await asyncio.start_server(hang_up_on_them, host, int(port)):
        one = asyncio.create_task(member(1, peers))
        await cut_off.wait()
    assert await outcomes_of(member(0, peers), one) == [[0, 1]] * 2


@asynccontextmanager
async def formed_ring(peers: list[str], **settings: Any) -> AsyncIterator[None]:
    """A ring that has formed, stays for the length of the block, and must not have been disturbed."""
    formed, done = asyncio.Event(), asyncio.Event()

    async def stay(rank: int) -> str:
        async with ringwide.join(rank=rank, peers=peers, config=RingConfig(**settings)) as ring:
            formed.set()
            await done.wait()
            await ring.barrier()
            return "undisturbed"

    ranks = [asyncio.create_task(stay(rank)) for rank in range(len(peers))]
    await formed.wait()
    try:
        yield
    finally:
        done.set()
        assert await outcomes_of(*ranks) == ["undisturbed"] * len(peers)


async def test_a_late_second_rank_is_turned_away_from_a_ring_that_has_formed(caplog: pytest.LogCaptureFixture) -> None:
    peers, elsewhere = free_peers(2), free_peers(1)
    async with formed_ring(peers):
        error = await error_of(member(1, peers, listen=elsewhere[0]))
        assert isinstance(error, ringwide.Disagreement)
        assert error.field == "rank (each rank must be started once)"
        assert any("turned away" in record.getMessage() for record in caplog.records)


async def test_strangers_at_a_ring_that_has_formed_disturb_nobody() -> None:
    peers = free_peers(2)
    async with formed_ring(peers):
        for noise in NOISE["http"], NOISE["data before a handshake"]:
            async with visiting(peers[0]) as (reader, writer):
                writer.write(noise)
                assert await rest(reader) == b""
