"""Ports on this machine for a fleet of nodes."""

import random
import socket
from pathlib import Path

from ringwide.errors import ConfigError

LOOPBACK = "127.0.0.1"
FIRST_PORT = 10_000
TRIES_PER_PORT = 100


def free_ports(count: int, chance: random.Random, among: range | None = None) -> list[int]:
    """Ports that nobody listens on now, of those that are given.

    By default they lie below those the kernel gives to outgoing connections: otherwise a node that dials early could
    be given the port on which a later one is about to listen.
    """
    candidates = among or range(FIRST_PORT, max(_first_outgoing_port(), FIRST_PORT + 1000))
    found: set[int] = set()
    for _ in range(TRIES_PER_PORT * count):
        port = chance.choice(candidates)
        if port not in found and _is_free(port):
            found.add(port)
        if len(found) == count:
            return sorted(found)
    raise ConfigError(f"nodes: {count}: found only {len(found)} free ports on {LOOPBACK}; use fewer nodes")


def write_peers(path: Path, ports: list[int]) -> None:
    path.write_text("".join(f"{LOOPBACK}:{port}\n" for port in ports), encoding="utf-8")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As the nodes will: a port in TIME_WAIT can be listened on again.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def _first_outgoing_port() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 32_768
