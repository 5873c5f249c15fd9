"""Listening sockets of a rank: TCP, and beside it a Unix-domain socket for ranks on the same machine.

Without protection a rank listens on loopback only.
"""

import errno
import ipaddress
import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ringwide.bootstrap.peers import Address
from ringwide.bootstrap.protection import INSECURE_VARIABLE, KEYGEN, VARIABLE
from ringwide.bootstrap.unix_sockets import SameHost, is_wildcard, unix_name
from ringwide.errors import AddressError, ConfigError

logger = logging.getLogger("ringwide.bootstrap")

BACKLOG = 1024
SILENT_SECONDS = 5
"""The kernel keeps a connection that says nothing to itself for so long, where it can (it rounds up)."""


def open_listeners(
    where: Address | socket.socket, known_as: Address, *, rank: int, beyond_loopback: bool, same_host: SameHost
) -> tuple[socket.socket, ...]:
    """Listening sockets, the one for TCP first.

    `where` is an address, or a socket that listens already; `known_as` is the address in the peers file. The
    Unix-domain socket listens before the TCP socket does, and dialers rely on that. Only a socket that listened before
    is an exception.
    """
    beside: list[socket.socket] = []

    def open_beside(tcp: socket.socket) -> None:
        if same_host != "tcp" and (unix := _listen_beside(tcp, known_as, rank, same_host)) is not None:
            beside.append(unix)

    try:
        if isinstance(where, Address):
            tcp = listen(where, rank=rank, beyond_loopback=beyond_loopback, when_bound=open_beside)
        else:
            tcp = adopted(where, rank=rank, beyond_loopback=beyond_loopback)
            open_beside(tcp)
    except BaseException:
        for unix in beside:
            unix.close()
        raise
    return (tcp, *beside)


def _listen_beside(tcp: socket.socket, known_as: Address, rank: int, same_host: SameHost) -> socket.socket | None:
    sockaddr = tcp.getsockname()
    if is_wildcard(sockaddr):
        # Dialers use the address in the peers file. It is ours, unless a port of another machine is forwarded here.
        port, (_, sockaddr) = sockaddr[1], resolved(known_as)
        if known_as.port != port:
            return None
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.bind(unix_name(sockaddr))
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        problem = "another process has taken its name" if error.errno == errno.EADDRINUSE else error.strerror or error
        if same_host == "unix":
            raise AddressError(f"rank {rank} cannot listen on a Unix-domain socket", str(problem)) from error
        logger.warning("rank %d has no Unix-domain socket, and uses TCP on this machine: %s", rank, problem)
        return None
    return sock


def listen(
    address: Address,
    *,
    rank: int,
    beyond_loopback: bool,
    when_bound: Callable[[socket.socket], None] = lambda _: None,
) -> socket.socket:
    """A listening TCP socket. Every error names the address, the rank, and what would be right.

    `when_bound` is called when the address is bound and nobody can connect yet.
    """
    family, sockaddr = resolved(address)
    if not beyond_loopback and not is_loopback(str(sockaddr[0])):
        raise refusal(str(address), rank=rank)
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port of a run that has just ended may be reused
        sock.bind(sockaddr)
        _defer_silent(sock)
        when_bound(sock)
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise AddressError(f"rank {rank} cannot listen on {address}", _explain(error, rank)) from error
    except BaseException:
        sock.close()
        raise
    return sock


def adopted(listener: socket.socket, *, rank: int, beyond_loopback: bool) -> socket.socket:
    """A listening socket that the caller has opened, checked by the same rules."""
    if listener.fileno() < 0:
        raise ConfigError(f"rank {rank}: the listener is closed; each ring needs a listening socket of its own")
    listens = listener.type == socket.SOCK_STREAM and listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    if listener.family not in (socket.AF_INET, socket.AF_INET6) or not listens:
        raise ConfigError(f"rank {rank}: the listener is not a TCP socket that listens; bind it, and call listen()")
    host, port = listener.getsockname()[:2]
    if not beyond_loopback and not is_loopback(host):
        raise refusal(str(Address(host, port)), rank=rank)
    listener.setblocking(False)
    _defer_silent(listener)
    return listener


def _defer_silent(listener: socket.socket) -> None:
    """Let the kernel hand over only connections on which something has come. A dialer always speaks first."""
    option = getattr(socket, "TCP_DEFER_ACCEPT", None)
    if option is not None:
        with suppress(OSError):  # a kernel without it, or an emulated one: silent connections are limited here as well
            listener.setsockopt(socket.IPPROTO_TCP, option, SILENT_SECONDS)


def is_loopback(host: str) -> bool:
    """Whether a numeric address, perhaps with a scope, is loopback."""
    return ipaddress.ip_address(host.partition("%")[0]).is_loopback


def refusal(where: str, *, rank: int) -> ConfigError:
    return ConfigError(
        f"rank {rank} would listen on {where}, beyond loopback, where anybody may connect; make a key with "
        f"`{KEYGEN}`, copy the file to every machine, and name it with key_file: (--key-file) or {VARIABLE}; "
        f"or, if everybody on that network may join, say so with insecure: true (--insecure) or {INSECURE_VARIABLE}=1"
    )


def resolved(address: Address) -> tuple[int, tuple[Any, ...]]:
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise unresolvable(address, error) from error
    return found[0][0], found[0][4]


def unresolvable(address: Address, error: OSError | UnicodeError) -> AddressError:
    reason = getattr(error, "strerror", None) or error
    return AddressError(str(address), f"the host name {address.host!r} does not resolve ({reason})")


def _explain(error: OSError, rank: int) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return f"the port is in use; is another process running as rank {rank}?"
        case errno.EADDRNOTAVAIL:
            return "this machine does not have that address; is the rank right? (or set listen: to an address it has)"
        case errno.EACCES:
            return "ports below 1024 are reserved; choose a higher one"
        case _:
            return error.strerror or str(error)
