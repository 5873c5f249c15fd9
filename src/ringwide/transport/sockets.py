"""Socket options for TCP and Unix-domain sockets, and reading back what the kernel has granted."""

import logging
import os
import socket
from dataclasses import dataclass
from fcntl import ioctl
from struct import pack, unpack
from termios import TIOCOUTQ
from typing import Literal

logger = logging.getLogger("ringwide.transport")

_KEEPALIVE_PROBES = 3
_TCP_CLOSE = 7
"""The state of a connection that was reset, as the kernel numbers it."""
_warned: set[int] = set()

Transport = Literal["tcp", "unix", "memory"]
"""Carrier of a connection. "unix" never leaves the machine; "memory" is a Unix-domain socket with shared memory for
large payloads."""


@dataclass(frozen=True, slots=True)
class SocketSettings:
    """Options for every connection."""

    buffer_bytes: int
    keepalive_seconds: int
    user_timeout_seconds: float


def drop(sock: socket.socket) -> None:
    """In a forked child: close its copy of the socket, even if something such as the event loop still refers to it."""
    if sock.fileno() >= 0:
        os.close(sock.detach())


def transport_of(sock: socket.socket) -> Literal["tcp", "unix"]:
    return "unix" if sock.family == socket.AF_UNIX else "tcp"


def tune(sock: socket.socket, settings: SocketSettings, *, always_read: bool) -> None:
    """Set no delay, large buffers, and keepalive, by which the kernel notices a dead host.

    Only a lane that a thread reads at all times gets a user timeout: to the kernel, a peer that does not read for a
    while looks dead, but it may only be computing. The heartbeat lane to the same peer notices if the host is gone.
    """
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, settings.buffer_bytes)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, settings.buffer_bytes)
    _warn_if_less(sock, settings.buffer_bytes)
    if transport_of(sock) == "tcp":
        _tune_tcp(sock, settings, always_read)


def _tune_tcp(sock: socket.socket, settings: SocketSettings, always_read: bool) -> None:
    tcp = socket.IPPROTO_TCP
    sock.setsockopt(tcp, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(tcp, socket.TCP_KEEPIDLE, settings.keepalive_seconds)
    sock.setsockopt(tcp, socket.TCP_KEEPINTVL, max(1, settings.keepalive_seconds // _KEEPALIVE_PROBES))
    sock.setsockopt(tcp, socket.TCP_KEEPCNT, _KEEPALIVE_PROBES)
    if always_read:
        sock.setsockopt(tcp, socket.TCP_USER_TIMEOUT, int(settings.user_timeout_seconds * 1000))
    acknowledge_quickly(sock)


def acknowledge_quickly(sock: socket.socket) -> None:
    """TCP only. Linux forgets this option after a while, so it is set again after each large frame."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


def reset_when_closed(sock: socket.socket) -> None:
    """TCP only. Closing will drop what has not reached the peer and send a reset, which cannot pass for an end."""
    if sock.fileno() >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, pack("ii", 1, 0))


def set_low_water(sock: socket.socket, nbytes: int) -> None:
    """TCP only. From now on, readable means that so many bytes are here, or the end, or that the buffer is full."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, nbytes)


def granted_bytes(sock: socket.socket) -> tuple[int, int]:
    """Send and receive buffer as granted. Linux reports twice the usable size; this is the usable one."""
    send = sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    receive = sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
    return send // 2, receive // 2


def _warn_if_less(sock: socket.socket, asked: int) -> None:
    granted = min(granted_bytes(sock))
    if granted < asked and asked not in _warned:
        _warned.add(asked)  # once: every socket of this process gets the same answer
        logger.warning(
            "buffer_bytes=%d asked, the kernel grants %d; raise net.core.rmem_max and net.core.wmem_max to get more",
            asked,
            granted,
        )


def unacknowledged_bytes(sock: socket.socket) -> int:
    """Bytes sent that the peer's kernel has not acknowledged. 0 on one machine, where both have the same kernel."""
    try:
        if transport_of(sock) == "unix":
            return 0
        if sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _TCP_CLOSE:
            return 0  # after a reset nothing will be acknowledged
        return int(unpack("i", ioctl(sock.fileno(), TIOCOUTQ, b"\0\0\0\0"))[0])
    except (OSError, ValueError):  # it is closed
        return 0
