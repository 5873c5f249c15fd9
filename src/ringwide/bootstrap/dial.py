"""Dialing a rank: by its Unix-domain socket if it has one that we can reach, else by TCP."""

import asyncio
import errno
import os
import socket
from typing import Any, NamedTuple

from ringwide.bootstrap.peers import Address
from ringwide.bootstrap.unix_sockets import SameHost, is_local, unix_name, why_not_ours


class DialTarget(NamedTuple):
    """A resolved address."""

    family: int
    sockaddr: tuple[Any, ...]


class NoUnixSocket(OSError):
    """The rank listens, but not on a Unix-domain socket, and no other is allowed."""


async def resolve(address: Address) -> DialTarget:
    """Resolve an address. `gaierror` or `UnicodeError` if there is no such host."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    return DialTarget(found[0][0], found[0][4])


def why_not_connected(error: OSError) -> str:
    """Why there is no connection to a rank, in words for somebody who waits for it."""
    if isinstance(error, ConnectionRefusedError | FileNotFoundError):
        return "nobody listens there yet"
    if isinstance(error, TimeoutError):
        return "its host does not answer: is it up, and does a firewall let this port through?"
    if error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN):
        return f"its host cannot be reached: {os.strerror(error.errno)}"
    return f"it cannot be dialled: {error.strerror or error}"


async def connect(target: DialTarget, *, same_host: SameHost, timeout_seconds: float) -> socket.socket:
    """A connected, non-blocking socket. `OSError`: nobody listens there, or not on an allowed kind of socket."""
    if same_host == "tcp" or not is_local(*target):
        return await _by_tcp(target, timeout_seconds)
    try:
        return _by_unix(target)
    except OSError:
        tcp = await _by_tcp(target, timeout_seconds)
    # A rank opens its Unix-domain socket before TCP. If it started only now, that one is there by now.
    try:
        unix = _by_unix(target)
    except OSError as error:
        if same_host == "auto":
            return tcp
        tcp.close()
        raise NoUnixSocket(f"it listens on TCP, but has no Unix-domain socket for us ({error})") from error
    tcp.close()
    return unix


def _by_unix(target: DialTarget) -> socket.socket:
    """Connect at once or not at all. `sock_connect` would take the refusal of a full backlog for a connection."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.connect(unix_name(target.sockaddr))
        if problem := why_not_ours(sock):
            raise PermissionError(problem)
    except BaseException:
        sock.close()
        raise
    return sock


async def _by_tcp(target: DialTarget, timeout_seconds: float) -> socket.socket:
    sock = socket.socket(target.family, socket.SOCK_STREAM)
    sock.setblocking(False)
    try:
        async with asyncio.timeout(timeout_seconds):
            await asyncio.get_running_loop().sock_connect(sock, target.sockaddr)
    except BaseException:
        sock.close()
        raise
    return sock
