"""Ranks on one machine: how one finds the Unix-domain socket of another, and whether it is really one of ours.

A rank that listens on TCP also listens on a name in the abstract namespace, which is made of its TCP address and its
user. Such a name ends with the process, whatever ends that, and is known in one network namespace only: where TCP would
reach another machine, or a proxy, there is no such name, and ranks meet on TCP.

Rules:
- The name is of the address at which a rank really listens, not of the one in the peers file: who stands between two
  ranks (a proxy, a forwarded port) stays there.
- Anybody may take a name. Only a process of our own user is spoken to on it, and only one is heard.
"""

import os
import socket
import struct
from ipaddress import ip_address
from typing import Any, Literal

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
