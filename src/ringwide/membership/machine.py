"""Which machine this is, and under which address others reach it."""

import os
import socket
from hashlib import blake2b
from pathlib import Path

from ringwide.errors import AddressError
from ringwide.membership.listening import is_loopback

_FAR_AWAY = ("192.0.2.1", "2001:db8::1")
"""Addresses that nobody has (RFC 5737, RFC 3849): the way there is the default route."""
_ANY_PORT = 9


def this_machine() -> str:
    """A digest that two processes share if one's 127.0.0.1 is the other's: same boot, same name, same network."""
    boot = _read(Path("/proc/sys/kernel/random/boot_id"))
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


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""
