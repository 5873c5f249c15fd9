"""Opening the TCP socket on which this rank is found, and refusing to do so where it is not safe."""

import errno
import ipaddress
import socket
from collections.abc import Callable
from typing import Any

from ringwide.errors import AddressError, ConfigError
from ringwide.membership.keys import KEYGEN, VARIABLE
from ringwide.membership.peers import Address
from ringwide.membership.protection import INSECURE_VARIABLE

BACKLOG = 1024


def listen(
    address: Address,
    *,
    rank: int,
    beyond_loopback: bool,
    when_bound: Callable[[socket.socket], None] = lambda _: None,
) -> socket.socket:
    """A listening socket. Every failure names the address, whose it is, and what would be right.

    `when_bound` is called when the address is ours, and nobody can connect yet.
    """
    family, sockaddr = resolved(address)
    if not beyond_loopback and not is_loopback(str(sockaddr[0])):
        raise refusal(str(address), rank=rank)
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port of a run that just ended is free
        sock.bind(sockaddr)
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
    """A listening socket that somebody else has opened, ready for use under the same rules."""
    if listener.fileno() < 0:
        raise ConfigError(f"rank {rank}: the listener is closed; each ring needs a listening socket of its own")
    listens = listener.type == socket.SOCK_STREAM and listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    if listener.family not in (socket.AF_INET, socket.AF_INET6) or not listens:
        raise ConfigError(f"rank {rank}: the listener is not a TCP socket that listens; bind it, and call listen()")
    host, port = listener.getsockname()[:2]
    if not beyond_loopback and not is_loopback(host):
        raise refusal(str(Address(host, port)), rank=rank)
    listener.setblocking(False)
    return listener


def is_loopback(host: str) -> bool:
    """`host` is a numeric address, perhaps with a scope."""
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
            return (
                "this machine does not have that address; is the rank right? (or set listen: to where it shall listen)"
            )
        case errno.EACCES:
            return "ports below 1024 are reserved; choose a higher one"
        case _:
            return error.strerror or str(error)
