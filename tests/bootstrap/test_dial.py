"""Dialing: a Unix-domain socket if there is one, and TCP in every other case."""

import errno
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from ringwide.bootstrap import dial
from ringwide.bootstrap.dial import DialTarget, NoUnixSocket, connect, why_not_connected
from ringwide.bootstrap.unix_sockets import unix_name
from ringwide.transport.sockets import transport_of

PATIENCE_SECONDS = 20


@pytest.fixture
def place() -> Iterator[DialTarget]:
    """Where somebody listens on TCP."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield DialTarget(socket.AF_INET, server.getsockname())


@pytest.fixture
def beside(place: DialTarget) -> Iterator[socket.socket]:
    """The Unix-domain socket of the same listener, for one that waits."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(unix_name(place.sockaddr))
        server.listen(0)
        yield server


async def test_unix_is_taken_where_it_is(place: DialTarget, beside: socket.socket) -> None:
    with await connect(place, same_host="auto", timeout_seconds=PATIENCE_SECONDS) as sock:
        assert transport_of(sock) == "unix"
        with pytest.raises(BlockingIOError):
            sock.recv(1)


async def test_tcp_is_taken_where_it_is_wanted(place: DialTarget, beside: socket.socket) -> None:
    with await connect(place, same_host="tcp", timeout_seconds=PATIENCE_SECONDS) as sock:
        assert transport_of(sock) == "tcp"


async def test_a_listener_that_begins_while_it_is_dialed_is_met_on_unix(
    place: DialTarget, beside: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_unix, refusals = dial._by_unix, iter([ConnectionRefusedError()])

    def at_the_second_try(place: DialTarget) -> socket.socket:
        for refusal in refusals:
            raise refusal
        return by_unix(place)

    monkeypatch.setattr(dial, "_by_unix", at_the_second_try)
    with await connect(place, same_host="auto", timeout_seconds=PATIENCE_SECONDS) as sock:
        assert transport_of(sock) == "unix"


async def test_a_crowd_before_the_unix_door_is_no_connection(place: DialTarget, beside: socket.socket) -> None:
    """The kernel says "try again" there, which event loops take for "under way"."""
    with ExitStack() as crowd:
        refused = False
        while not refused:
            sock = crowd.enter_context(socket.socket(socket.AF_UNIX))
            sock.setblocking(False)
            refused = sock.connect_ex(unix_name(place.sockaddr)) == errno.EAGAIN
        with await connect(place, same_host="auto", timeout_seconds=PATIENCE_SECONDS) as sock:
            assert transport_of(sock) == "tcp"
        with pytest.raises(NoUnixSocket, match="it listens on TCP, but has no Unix-domain socket for us"):
            await connect(place, same_host="unix", timeout_seconds=PATIENCE_SECONDS)


@pytest.mark.parametrize("way", ["auto", "unix", "tcp"])
async def test_nobody_there_is_an_error(way: dial.SameHost) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        with pytest.raises(ConnectionRefusedError):
            await connect(
                DialTarget(socket.AF_INET, bound.getsockname()), same_host=way, timeout_seconds=PATIENCE_SECONDS
            )


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), "nobody listens there yet"),
        (TimeoutError(), "its host does not answer: is it up, and does a firewall let this port through?"),
        (OSError(errno.EHOSTUNREACH, "x"), "its host cannot be reached: No route to host"),
        (OSError(errno.ENETUNREACH, "x"), "its host cannot be reached: Network is unreachable"),
        (PermissionError(errno.EPERM, "Operation not permitted"), "it cannot be dialled: Operation not permitted"),
        (OSError("something else"), "it cannot be dialled: something else"),
    ],
)
def test_reasons_for_which_there_is_no_connection_are_told_apart(error: OSError, words: str) -> None:
    assert why_not_connected(error) == words
