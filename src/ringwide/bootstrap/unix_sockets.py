"""Ranks on one machine: the name of a rank's Unix-domain socket, and the check that its process is one of ours.

A rank that listens on TCP also listens on a name in the abstract namespace, made of its TCP address and its user. Such
a name disappears with the process, however it ends, and exists in one network namespace only. Where TCP would reach
another machine or a proxy, there is no such name, and ranks connect by TCP.

Rules:
- The name is made of the address at which a rank really listens, not of the one in the peers file. So a proxy or a
  forwarded port between two ranks is not bypassed.
- Any process may take a name. Only connections with a process of our own user are used, in both directions.
"""

import os
import socket
import struct
from ipaddress import ip_address
from typing import Any, Literal

SameHost = Literal["auto", "tcp", "unix"]
"""Transport between ranks on one machine: Unix-domain sockets if possible, TCP only, or Unix-domain sockets only."""

LOOPBACK = "127.0.0.1"
_CREDENTIALS = struct.Struct("iII")  # process, user, group


def unix_name(sockaddr: tuple[Any, ...]) -> str:
    """Name of the Unix-domain socket of the rank that listens on this TCP address."""
    host, port = sockaddr[:2]
    return f"\0ringwide/{os.geteuid()}/{_canonical(host)}/{port}"


def is_wildcard(sockaddr: tuple[Any, ...]) -> bool:
    """Whether it stands for every address of this machine."""
    return ip_address(_canonical(sockaddr[0])).is_unspecified


def is_local(family: int, sockaddr: tuple[Any, ...]) -> bool:
    """Whether it is an address of this machine. The kernel knows: no other address can be bound."""
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((sockaddr[0], 0, *sockaddr[2:]))
        except OSError:
            return False
    return True


def is_unix(sock: socket.socket) -> bool:
    return sock.family == socket.AF_UNIX


def why_not_ours(sock: socket.socket) -> str | None:
    """Reason to refuse the process at the other end, by its user. The kernel tells the user, not the process."""
    if not is_unix(sock):
        return None
    process, user = _process_and_user(sock)
    if user == os.geteuid():
        return None
    return f"process {process} belongs to user {user}, and this rank to user {os.geteuid()}"


def peer_host(sock: socket.socket) -> str:
    """Name for the other end of a Unix-domain socket. A process of our own user is named as on TCP: it may try both."""
    user = _process_and_user(sock)[1]
    return LOOPBACK if user == os.geteuid() else f"user {user} of this machine"


def _process_and_user(sock: socket.socket) -> tuple[int, int]:
    process, user, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return process, user


def _canonical(host: str) -> str:
    """The shortest spelling. The zone of a link-local address stays: on another interface it is another address."""
    return str(ip_address(host))
