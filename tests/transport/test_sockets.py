"""Socket options: they are really set, and what the kernel granted is reported."""

import logging
import socket
from collections.abc import Iterator

import pytest

from ringwide.transport import sockets
from ringwide.transport.sockets import (
    SocketSettings,
    acknowledge_quickly,
    granted_bytes,
    transport_of,
    tune,
    unacknowledged_bytes,
)
from transport.wire import tcp_pair, unix_pair

TCP, SOL = socket.IPPROTO_TCP, socket.SOL_SOCKET
FAR_TOO_MUCH = 1024 * 1024 * 1024


@pytest.fixture
def sock() -> Iterator[socket.socket]:
    with tcp_pair() as (one, _):
        one.setblocking(True)
        one.setsockopt(TCP, socket.TCP_NODELAY, 0)
        yield one


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> SocketSettings:
    monkeypatch.setattr(sockets, "_warned", set())
    return SocketSettings(buffer_bytes=128 * 1024, keepalive_seconds=12, user_timeout_seconds=2.5)


@pytest.mark.parametrize(
    ("level", "option", "expected"),
    [
        (TCP, socket.TCP_NODELAY, 1),
        (SOL, socket.SO_KEEPALIVE, 1),
        (TCP, socket.TCP_KEEPIDLE, 12),
        (TCP, socket.TCP_KEEPINTVL, 4),
        (TCP, socket.TCP_KEEPCNT, 3),
        (TCP, socket.TCP_USER_TIMEOUT, 2500),
    ],
    ids=["nodelay", "keepalive", "idle", "interval", "probes", "user timeout"],
)
def test_options_are_set(sock: socket.socket, settings: SocketSettings, level: int, option: int, expected: int) -> None:
    assert sock.getsockopt(level, option) != expected, "the kernel's default would hide a missing call"
    tune(sock, settings, always_read=True)
    assert sock.getsockopt(level, option) == expected


def test_a_lane_that_may_not_be_read_for_long_has_no_user_timeout(
    sock: socket.socket, settings: SocketSettings
) -> None:
    """The kernel would count the time in which the peer computes."""
    tune(sock, settings, always_read=False)
    assert sock.getsockopt(TCP, socket.TCP_USER_TIMEOUT) == 0


def test_the_socket_does_not_block(sock: socket.socket, settings: SocketSettings) -> None:
    tune(sock, settings, always_read=True)
    with pytest.raises(BlockingIOError):
        sock.recv(1)


def test_buffers_are_granted_in_both_directions_and_told_without_the_kernels_doubling(
    sock: socket.socket, settings: SocketSettings, caplog: pytest.LogCaptureFixture
) -> None:
    assert granted_bytes(sock) != (128 * 1024, 128 * 1024)
    tune(sock, settings, always_read=True)
    assert granted_bytes(sock) == (128 * 1024, 128 * 1024)
    assert caplog.records == []


def test_a_smaller_grant_is_told_and_warned_about_once(
    sock: socket.socket, settings: SocketSettings, caplog: pytest.LogCaptureFixture
) -> None:
    greedy = SocketSettings(FAR_TOO_MUCH, settings.keepalive_seconds, settings.user_timeout_seconds)
    tune(sock, greedy, always_read=True)
    tune(sock, greedy, always_read=True)
    granted = min(granted_bytes(sock))
    assert granted < FAR_TOO_MUCH
    assert [(record.name, record.levelno) for record in caplog.records] == [("ringwide.transport", logging.WARNING)]
    message = caplog.records[0].getMessage()
    assert f"buffer_bytes={FAR_TOO_MUCH} asked, the kernel grants {granted}" in message
    assert "net.core.rmem_max" in message


def test_quick_acknowledgement_is_asked_for(sock: socket.socket, settings: SocketSettings) -> None:
    sock.setsockopt(TCP, socket.TCP_QUICKACK, 0)
    acknowledge_quickly(sock)
    assert sock.getsockopt(TCP, socket.TCP_QUICKACK) == 1
    sock.setsockopt(TCP, socket.TCP_QUICKACK, 0)
    tune(sock, settings, always_read=True)
    assert sock.getsockopt(TCP, socket.TCP_QUICKACK) == 1


# -- Unix-domain sockets


def test_a_unix_socket_gets_its_buffers_and_does_not_block(settings: SocketSettings) -> None:
    with unix_pair() as (one, _):
        one.setblocking(True)
        assert transport_of(one) == "unix"
        assert granted_bytes(one) != (128 * 1024, 128 * 1024)
        tune(one, settings, always_read=True)
        assert granted_bytes(one) == (128 * 1024, 128 * 1024)
        with pytest.raises(BlockingIOError):
            one.recv(1)


def test_what_a_unix_socket_has_taken_is_there_although_nobody_has_read_it(sock: socket.socket) -> None:
    with unix_pair() as (one, other):
        one.send(bytes(1000))
        assert unacknowledged_bytes(one) == 0
        one.close()
        assert unacknowledged_bytes(one) == 0
        assert len(other.recv(2000)) == 1000
    assert transport_of(sock) == "tcp"
