"""Connecting to a rank: by its Unix-domain socket if it has one that we can reach, else by TCP."""

import asyncio
import socket
from typing import Any, NamedTuple

from ringwide.bootstrap.peers import Address
from ringwide.bootstrap.same_host import SameHost, is_here, unix_name, why_not_ours


class DialTarget(NamedTuple):
    """Where an address leads to."""

    family: int
    sockaddr: tuple[Any, ...]


class NoUnixSocket(OSError):
    """The rank is there, but not on the only kind of socket that we want."""


async def resolve(address: Address) -> DialTarget:
    """`gaierror` or `UnicodeError` if there is no such host."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    return DialTarget(found[0][0], found[0][4])


async def connect(place: DialTarget, *, same_host: SameHost, timeout_seconds: float) -> socket.socket:
    """A connected socket that does not block. `OSError`: nobody is there, or not as we want it."""
    if same_host == "tcp" or not is_here(*place):
        return await _by_tcp(place, timeout_seconds)
    try:
        return _by_unix(place)
    except OSError:
        tcp = await _by_tcp(place, timeout_seconds)
    # A rank listens on its Unix-domain socket first. If it began only now, that one is there now.
    try:
        unix = _by_unix(place)
    except OSError as error:
        if same_host == "auto":
            return tcp
        tcp.close()
        raise NoUnixSocket(f"it listens on TCP, but has no Unix-domain socket for us ({error})") from error
    tcp.close()
    return unix


def _by_unix(place: DialTarget) -> socket.socket:
    """At once or not at all. Not `sock_connect`: where no more can wait, it would take a refusal for a connection."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.connect(unix_name(place.sockaddr))
        if problem := why_not_ours(sock):
            raise PermissionError(problem)
    except BaseException:
        sock.close()
        raise
    return sock


async def _by_tcp(place: DialTarget, timeout_seconds: float) -> socket.socket:
    sock = socket.socket(place.family, socket.SOCK_STREAM)
    sock.setblocking(False)
    try:
        async with asyncio.timeout(timeout_seconds):
            await asyncio.get_running_loop().sock_connect(sock, place.sockaddr)
    except BaseException:
        sock.close()
        raise
    return sock
