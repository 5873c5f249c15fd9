"""Unix-domain sockets between ranks on one machine: how they are found, and whose are refused."""

import asyncio
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ringwide
from bootstrap.raw_clients import PATIENCE_SECONDS, START_SECONDS, hang_up, hello, rest
from bootstrap.test_form_ring import formed_ring, forward, member, outcomes_of
from local_ring import free_peers, on_every_rank
from ringwide import Ring, RingConfig
from ringwide.bootstrap import form_ring
from ringwide.bootstrap.listen import open_listeners
from ringwide.bootstrap.peers import Address, parse_address
from ringwide.bootstrap.unix_sockets import is_local, is_wildcard, unix_name

pytestmark = pytest.mark.usefixtures("nothing_left_behind", "silent_ones_are_seen")

NOBODY = 65_534
IS_ROOT = os.geteuid() == 0


def parse(peer: str) -> tuple[str, int]:
    address = parse_address(peer, "a test")
    return address.host, address.port


def name_of(peer: str) -> str:
    return unix_name(parse(peer))


def root_name_of(peer: str) -> str:
    """Whoever asks."""
    host, port = parse(peer)
    return f"\0ringwide/0/{host}/{port}"


@asynccontextmanager
async def visiting_by_unix(
    peer: str, sock: socket.socket | None = None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    if sock is None:
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(name_of(peer))
    reader, writer = await asyncio.open_unix_connection(sock=sock)
    try:
        yield reader, writer
    finally:
        await hang_up(writer)


def names_in_use() -> str:
    return Path("/proc/net/unix").read_text()


def shown(name: str) -> str:
    """As the kernel lists it."""
    return name.replace("\0", "@")


async def transports(ring: Ring) -> set[tuple[str, ...]]:
    await ring.allreduce(np.ones(300_000, np.float32))
    return {tuple(lane.transport for lane in link.lanes) for link in ring.statistics().links}


async def transports_of(rank: int, peers: list[str], **settings: Any) -> set[str]:
    """On what this rank has met the others."""
    config = RingConfig(start_timeout_seconds=PATIENCE_SECONDS, **settings)
    async with ringwide.join(rank=rank, peers=peers, config=config) as ring:
        await ring.barrier()
        return {link.transport for link in ring.statistics().links}


@contextmanager
def taken(name: str) -> Iterator[socket.socket]:
    """Somebody was there first, who hears everybody and says nothing."""
    with socket.socket(socket.AF_UNIX) as squatter:
        squatter.bind(name)
        squatter.listen(64)
        yield squatter


@contextmanager
def as_another_user() -> Iterator[None]:
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


# -- which way


@pytest.mark.parametrize(("way", "expected"), [("auto", "memory"), ("unix", "unix"), ("tcp", "tcp")])
async def test_all_lanes_of_ranks_on_one_machine_go_the_way_that_is_set(way: str, expected: str) -> None:
    seen = await on_every_rank(3, transports, same_host=way, lanes=2, algorithm="ring")
    assert {lanes for links in seen for lanes in links} == {(expected,) * 3}


async def test_ranks_need_not_agree() -> None:
    peers = free_peers(3)
    ways = await outcomes_of(
        *(transports_of(rank, peers, same_host=way) for rank, way in enumerate(["auto", "tcp", "auto"]))
    )
    assert ways == [{"tcp", "memory"}, {"tcp"}, {"tcp", "memory"}]


async def test_statistics_name_both_if_lanes_differ() -> None:
    """As with a rank that listened before it joined."""
    peers = free_peers(2)
    with socket.create_server(parse(peers[0])) as listener:
        dialing = asyncio.create_task(transports_of(1, peers))
        accepted = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().add_reader(listener, lambda: accepted.done() or accepted.set_result(None))
        await asyncio.wait_for(accepted, PATIENCE_SECONDS)  # rank 1 has connected, and waits for a word
        asyncio.get_running_loop().remove_reader(listener)
        config = RingConfig(start_timeout_seconds=PATIENCE_SECONDS)
        async with ringwide.join(rank=0, peers=peers, config=config, listener=listener) as ring:
            await ring.barrier()
            (link,) = ring.statistics().links
            assert [lane.transport for lane in link.lanes][:2] == ["tcp", "memory"]
            assert link.transport == "memory and tcp"
            assert await dialing == {"memory and tcp"}


@pytest.mark.parametrize("same_port", [False, True])
async def test_who_stands_between_two_ranks_stays_there(same_port: bool) -> None:
    """The name is of where a rank listens, not of the address in the peers file, which is the proxy's."""
    peers, (inner,) = free_peers(2), free_peers(1)
    if same_port:
        inner = f"127.0.0.2:{parse(peers[0])[1]}"
    forwarding = asyncio.create_task(forward(peers[0], inner, connections=3))
    ways = await outcomes_of(transports_of(0, peers, listen=inner), transports_of(1, peers))
    assert ways == [{"tcp"}] * 2
    await forwarding


async def test_who_listens_everywhere_is_found_by_its_line_in_the_peers_file() -> None:
    peers = free_peers(2)
    everywhere = f"0.0.0.0:{parse(peers[0])[1]}"
    one, other = transports_of(0, peers, listen=everywhere, insecure=True), transports_of(1, peers, insecure=True)
    assert await outcomes_of(one, other) == [{"memory"}] * 2


def test_who_listens_everywhere_on_another_port_has_no_name_that_others_know() -> None:
    (inner,), (known_as,) = free_peers(1), free_peers(1)
    where = Address("0.0.0.0", parse(inner)[1])
    (tcp,) = open_listeners(where, parse_address(known_as, ""), rank=0, beyond_loopback=True, same_host="auto")
    tcp.close()


@pytest.mark.parametrize(("host", "here"), [("127.0.0.1", True), ("127.8.9.10", True), ("192.0.2.1", False)])
def test_an_address_of_this_machine_is_known(host: str, here: bool) -> None:
    assert is_local(socket.AF_INET, (host, 29500)) is here


def test_names_are_short_enough_and_of_one_user_and_address() -> None:
    longest = unix_name(("fe80:1111:2222:3333:4444:5555:6666:7777%a-long-interface", 65_535, 0, 3))
    assert len(longest) <= 107
    assert unix_name(("127.0.0.1", 1)) == f"\0ringwide/{os.geteuid()}/127.0.0.1/1"
    assert unix_name(("0::1", 1)) == unix_name(("::1", 1)) != unix_name(("::1", 2))
    assert [is_wildcard((host, 1)) for host in ("0.0.0.0", "::", "127.0.0.1", "::1")] == [True, True, False, False]


# -- unix, and nothing else


@pytest.mark.parametrize("rank", [0, 1])
async def test_unix_with_a_rank_elsewhere_is_an_error_at_once_that_names_it(rank: int) -> None:
    (mine,) = free_peers(1)
    peers = [mine, "192.0.2.1:29500"] if rank == 0 else ["192.0.2.1:29500", mine]
    (error,) = await outcomes_of(member(rank, peers, same_host="unix", start_timeout_seconds=10 * PATIENCE_SECONDS))
    assert isinstance(error, ringwide.ConfigError)
    assert f"same_host: unix, but rank {1 - rank} (192.0.2.1:29500) is not on this machine" in str(error)


async def test_unix_does_not_take_in_a_dialer_by_tcp() -> None:
    peers = free_peers(2)
    errors = await outcomes_of(member(0, peers, same_host="unix"), member(1, peers, same_host="tcp"))
    for error in errors:
        assert isinstance(error, ringwide.Disagreement)
        assert (error.field, {error.ours, error.theirs}) == ("same_host", {"tcp", "unix"})


@pytest.mark.usefixtures("start_ends_after_some_tries")
async def test_unix_does_not_dial_by_tcp() -> None:
    peers = free_peers(2)
    listening = asyncio.create_task(member(0, peers, same_host="tcp"))
    (error,) = await outcomes_of(member(1, peers, same_host="unix", start_timeout_seconds=START_SECONDS))
    assert isinstance(error, ringwide.StartTimeout)
    assert f"rank 0 ({peers[0]}; it listens on TCP, but has no Unix-domain socket for us" in str(error)
    listening.cancel()
    await asyncio.wait([listening])


async def test_unix_needs_its_name() -> None:
    peers = free_peers(2)
    with taken(name_of(peers[0])):
        (error,) = await outcomes_of(member(0, peers, same_host="unix"))
    assert isinstance(error, ringwide.AddressError)
    assert "rank 0 cannot listen on a Unix-domain socket: another process has taken its name" in str(error)


# -- whom one believes


@pytest.mark.parametrize("kind", ["silent", "nonsense", "hangs up"])
async def test_whoever_took_the_name_first_is_left_alone_and_ranks_meet_on_tcp(
    kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    peers = free_peers(2)
    if kind == "silent":
        monkeypatch.setattr(form_ring, "ANSWER_SECONDS", 0.3)

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if kind == "nonsense":
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n" + bytes(64))
        if kind != "silent":
            writer.close()
        held.append(writer)
        met.set()

    held: list[asyncio.StreamWriter] = []
    met = asyncio.Event()
    squatter = socket.socket(socket.AF_UNIX)
    squatter.bind(name_of(peers[0]))
    async with await asyncio.start_unix_server(answer, sock=squatter):
        dialer = asyncio.create_task(transports_of(1, peers))
        await asyncio.wait_for(met.wait(), PATIENCE_SECONDS)  # only then is there a rank 0 that it is taken for
        monkeypatch.setattr(form_ring, "ANSWER_SECONDS", PATIENCE_SECONDS)
        assert await outcomes_of(transports_of(0, peers), dialer) == [{"tcp"}] * 2
        for writer in held:
            writer.close()
    assert (
        "rank 0 has no Unix-domain socket, and uses TCP on this machine: another process has taken its name"
        in caplog.text
    )


@pytest.mark.skipif(not IS_ROOT, reason="only root can be somebody else")
async def test_a_listener_of_another_user_is_not_spoken_to() -> None:
    peers = free_peers(2)
    with as_another_user():
        squatter = socket.socket(socket.AF_UNIX)
        squatter.bind(root_name_of(peers[0]))
        squatter.listen(64)
    squatter.setblocking(False)
    with squatter:
        assert await outcomes_of(transports_of(0, peers), transports_of(1, peers)) == [{"tcp"}] * 2
        heard = []
        while True:
            try:
                visitor = squatter.accept()[0]
            except BlockingIOError:
                break
            with visitor:
                heard.append(visitor.recv(1))
        assert set(heard) == {b""}, "it was tried, and hung up on before a word"


@pytest.mark.skipif(not IS_ROOT, reason="only root can be somebody else")
async def test_a_dialer_of_another_user_is_turned_away_before_a_word(caplog: pytest.LogCaptureFixture) -> None:
    peers = free_peers(2)
    async with formed_ring(peers):
        with as_another_user():
            stranger = socket.socket(socket.AF_UNIX)
            stranger.connect(root_name_of(peers[0]))
        async with visiting_by_unix(peers[0], stranger) as (reader, _):
            assert await rest(reader) == b""
    assert (
        f"turned away a connection from user {NOBODY} of this machine: process {os.getpid()} belongs to" in caplog.text
    )
    assert f"user {NOBODY}, and this rank to user 0" in caplog.text


async def test_strangers_of_our_own_user_do_not_disturb(caplog: pytest.LogCaptureFixture) -> None:
    peers = free_peers(2)
    async with formed_ring(peers):
        for noise in (b"GET / HTTP/1.1\r\n\r\n" + bytes(64), b""):
            async with visiting_by_unix(peers[0]) as (reader, writer):
                writer.write(noise)
                writer.write_eof()
                assert await rest(reader) == b""
    assert "turned away a connection from 127.0.0.1: this is not a ringwide peer" in caplog.text


@pytest.mark.parametrize("settings", [{}, {"encrypt": True}])
async def test_a_key_guards_both_listeners(
    settings: dict[str, Any], key_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    peers = free_peers(2)
    ways = await outcomes_of(*(transports_of(rank, peers, key_file=key_file, **settings) for rank in (0, 1)))
    assert ways == [{"unix" if settings else "memory"}] * 2
    async with formed_ring(peers, key_file=key_file, **settings), visiting_by_unix(peers[0]) as (reader, writer):
        writer.write(hello({"rank": 1}))
        assert await rest(reader) == b"", "not a word to one without the key"
    assert "it does not ask for a proof, nor give one" in caplog.text


# -- the end


async def test_a_name_ends_with_the_ring() -> None:
    peers = free_peers(2)
    async with formed_ring(peers):
        assert shown(name_of(peers[0])) in names_in_use()
    assert shown(name_of(peers[0])) not in names_in_use()


async def test_a_forked_child_does_not_keep_the_name() -> None:
    peers = free_peers(1)
    (blocked, release), (started, starting) = os.pipe(), os.pipe()
    async with ringwide.join(rank=0, peers=peers):
        child = os.fork()
        if child == 0:
            os.close(release)
            os.write(starting, b"!")
            os.read(blocked, 1)
            os._exit(0)
        os.read(started, 1)
    try:
        assert shown(name_of(peers[0])) not in names_in_use()
    finally:
        for end in (blocked, release, started, starting):
            os.close(end)
        os.waitpid(child, 0)  # noqa: ASYNC222 - it ends now


def test_a_name_ends_with_its_process_whatever_ends_it() -> None:
    peers = free_peers(2)
    child = os.fork()
    if child == 0:
        try:
            asyncio.run(member(0, peers))
        finally:
            os._exit(1)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while shown(name_of(peers[0])) not in names_in_use():
        assert time.monotonic() < deadline
        time.sleep(0.01)  # nothing tells when somebody listens
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert shown(name_of(peers[0])) not in names_in_use()
