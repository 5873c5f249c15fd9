"""Ranks on one machine: how one finds the Unix-domain socket of another, and whether it is really one of ours.

A rank that listens on TCP also listens on a name in the abstract namespace, which is made of its TCP address and its
user. Such a name ends with the process, whatever ends that, and is known in one network namespace only: where TCP would
reach another machine, or a proxy, there is no such name, and ranks meet on TCP.

Rules:
- The name is of the address at which a rank really listens, not of the one in the peers file: who stands between two
  ranks (a proxy, a forwarded port) stays there.
- Anybody may take a name. Only a process of our own user is spoken to on it, and only one is heard.
"""

import errno
import os
import socket
import struct
from functools import cache
from hashlib import blake2b
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Literal

from ringwide.bootstrap.listen import is_loopback
from ringwide.bootstrap.untrusted_connection import HungUp, UntrustedConnection, until_readable
from ringwide.errors import AddressError, RemoteProtocolError
from ringwide.transport.shm_arena import ArenaReader, ArenaShape, ArenaWriter
from ringwide.transport.shm_lane import SharedWire

SameHost = Literal["auto", "tcp", "unix"]
"""What ranks on one machine use: Unix-domain sockets if they can, never, or nothing else."""

LOOPBACK = "127.0.0.1"
_CREDENTIALS = struct.Struct("iII")  # process, user, group


def unix_name(sockaddr: tuple[Any, ...]) -> str:
    """Where the rank that listens on this TCP address listens as well."""
    host, port = sockaddr[:2]
    return f"\0ringwide/{os.geteuid()}/{_spelled(host)}/{port}"


def is_wildcard(sockaddr: tuple[Any, ...]) -> bool:
    """Is it every address of this machine?"""
    return ip_address(_spelled(sockaddr[0])).is_unspecified


def is_here(family: int, sockaddr: tuple[Any, ...]) -> bool:
    """Is it an address of this machine? The kernel knows: only such a one can be bound."""
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((sockaddr[0], 0, *sockaddr[2:]))
        except OSError:
            return False
    return True


def is_unix(sock: socket.socket) -> bool:
    return sock.family == socket.AF_UNIX


def why_not_ours(sock: socket.socket) -> str | None:
    """What speaks against the process at the other end. The kernel tells whose it is, not the process."""
    if not is_unix(sock):
        return None
    process, user = _who(sock)
    if user == os.geteuid():
        return None
    return f"process {process} belongs to user {user}, and this rank to user {os.geteuid()}"


def place_of(sock: socket.socket) -> str:
    """Who is at the other end of a Unix-domain socket. One of our own user is called as on TCP: it may try both."""
    user = _who(sock)[1]
    return LOOPBACK if user == os.geteuid() else f"user {user} of this machine"


def _who(sock: socket.socket) -> tuple[int, int]:
    process, user, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return process, user


def _spelled(host: str) -> str:
    """The zone of a link-local address stays: the same address on another interface is another."""
    return str(ip_address(host))


# Which machine this is, and under which address others reach it.

_FAR_AWAY = ("192.0.2.1", "2001:db8::1")
"""Addresses that nobody has (RFC 5737, RFC 3849): the way there is the default route."""
_ANY_PORT = 9


def this_machine() -> str:
    """A digest that two processes share if one's 127.0.0.1 is the other's: same boot, same name, same network."""
    boot = _text_of(Path("/proc/sys/kernel/random/boot_id"))
    return blake2b("\n".join([boot, socket.gethostname(), _network()]).encode(), digest_size=16).hexdigest()


def address_towards(host: str | None, *, rank: int) -> str:
    """The address of this machine from which `host` is reached, or from which everything else is.

    A machine's own name often leads to loopback (127.0.1.1 in /etc/hosts), where no other machine finds it.
    """
    for target in (*([host] if host else []), *_FAR_AWAY):
        found = _source_of(target)
        if found is not None and not is_loopback(found):
            return found
    raise AddressError(
        f"rank {rank} does not know its address",
        "ranks are on several machines, and this one has no route to another; name its address with RINGWIDE_HOST",
    )


def _source_of(target: str) -> str | None:
    """To connect a datagram socket sends nothing: the kernel only looks for the way."""
    try:
        family, kind, proto, _, sockaddr = socket.getaddrinfo(target, _ANY_PORT, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, proto) as probe:
            probe.connect(sockaddr)
            return str(probe.getsockname()[0])
    except (OSError, UnicodeError):
        return None


def _network() -> str:
    """The network namespace: each has a loopback of its own."""
    try:
        return os.readlink("/proc/self/ns/net")
    except OSError:
        return ""


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""


# Two ranks on one machine hand each other memory, when they have met and before their lane begins.

_HERE_IT_IS = b"\0"
_FILES = 2  # the memory, and its bell


@cache
def can_share() -> bool:
    """Does this system have memory that can be handed over? Not every one does, or lets every process."""
    try:
        ArenaWriter(ArenaShape(1, 1)).close()
    except AttributeError:
        return False
    except OSError as error:
        return error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # not now, but it will be asked again
    return True


async def share(channel: UntrustedConnection, shape: ArenaShape) -> SharedWire:
    """Both sides have said that they do. Descriptors travel with a byte of their own."""
    outgoing, sock = ArenaWriter(shape), channel.wire.socket
    try:
        socket.send_fds(sock, [_HERE_IT_IS], outgoing.files)  # the kernel has room: all before it has been answered
        outgoing.handed_over()
        return SharedWire(sock, outgoing, ArenaReader(shape, *await _receive(sock)))
    except BaseException:
        outgoing.close()
        raise


async def _receive(sock: socket.socket) -> list[int]:
    while True:
        try:
            data, files, flags, _ = socket.recv_fds(sock, len(_HERE_IT_IS), _FILES, socket.MSG_CMSG_CLOEXEC)
            break
        except (BlockingIOError, InterruptedError):
            await until_readable(sock)
    if data == _HERE_IT_IS and len(files) == _FILES and not flags & socket.MSG_CTRUNC:
        return files
    for file in files:
        os.close(file)
    if not data:
        raise HungUp("the connection ended where memory was due")
    raise RemoteProtocolError("it shares something else than memory and a bell")
