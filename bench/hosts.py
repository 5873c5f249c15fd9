"""Hosts with limited links, on one machine: network namespaces, each with one cable to a switch between them.

A host has one interface, `eth0`, and an address of 10.77.0.0/24. Each direction of its cable has its own `tbf`: what
leaves it is limited inside the host, what comes to it at the switch. The switch has a namespace too, so nothing of the
machine's own network is touched. A namespace is named after the process that made it, and is removed by that process
or, if that was killed, by the next one that makes hosts.
"""

import itertools
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PREFIX = "ringwide"
INTERFACE = "eth0"
MOST_HOSTS = 250

BURST_SECONDS = 0.002  # enough to fill a fast link in spite of timers that fire late
LEAST_BURST_BYTES = 80_000  # the kernel's packets of 64 KiB pass whole, as they would with a NIC's offloads
MOST_BURST_BYTES = 250_000
QUEUE_SECONDS = 0.05  # a queue that is shorter drops, and TCP backs off below the rate
CONGESTION_CONTROL = "reno"  # the only one that every kernel has and every namespace may choose

_counter = itertools.count()


class HostsUnavailable(Exception):
    """This machine, or this user, cannot make hosts. The text says what is missing."""


@dataclass(frozen=True, slots=True)
class Host:
    namespace: str
    address: str

    def command(self, arguments: Sequence[str]) -> list[str]:
        """The same command, inside this host."""
        return ["ip", "netns", "exec", self.namespace, *arguments]


class Hosts:
    """Hosts that can reach each other. `hosts[rank]` is one of them."""

    def __init__(self, name: str, count: int) -> None:
        self._switch = f"{name}-switch"
        self._hosts = [Host(f"{name}-{rank}", f"10.77.0.{1 + rank}") for rank in range(count)]

    def __len__(self) -> int:
        return len(self._hosts)

    def __getitem__(self, rank: int) -> Host:
        return self._hosts[rank]

    def __iter__(self) -> Iterator[Host]:
        return iter(self._hosts)

    def set_rate(self, bits_per_second: float) -> None:
        """Limit every cable to this, in each direction. What flows, flows on."""
        limit = ["root", "tbf", *_token_bucket(bits_per_second)]
        for rank, host in enumerate(self._hosts):
            _run("tc", "-n", host.namespace, "qdisc", "replace", "dev", INTERFACE, *limit)
            _run("tc", "-n", self._switch, "qdisc", "replace", "dev", f"port{rank}", *limit)

    def set_congestion_control(self, name: str) -> None:
        """For the connections that are made from now on."""
        for host in self._hosts:
            setting = f"echo {name} > /proc/sys/net/ipv4/tcp_congestion_control"
            _run(*host.command(["sh", "-c", setting]))

    def build(self) -> None:
        _run("ip", "netns", "add", self._switch)
        _in(self._switch, "link", "add", "bridge", "type", "bridge")
        _in(self._switch, "link", "set", "bridge", "up")
        for rank, host in enumerate(self._hosts):
            _run("ip", "netns", "add", host.namespace)
            cable = ["link", "add", f"port{rank}", "mtu", "1500", "type", "veth", "peer", "name", INTERFACE]
            _in(self._switch, *cable, "mtu", "1500", "netns", host.namespace)
            _in(self._switch, "link", "set", f"port{rank}", "master", "bridge", "up")
            _in(host.namespace, "address", "add", f"{host.address}/24", "dev", INTERFACE)
            _in(host.namespace, "link", "set", "lo", "up")
            _in(host.namespace, "link", "set", INTERFACE, "up")


@contextmanager
def make_hosts(count: int, bits_per_second: float) -> Iterator[Hosts]:
    """Hosts for the length of the block. Raises `HostsUnavailable` where namespaces cannot be made."""
    if not 1 <= count <= MOST_HOSTS:
        raise ValueError(f"{count} hosts do not fit into one network: 1 to {MOST_HOSTS} do")
    remove_leftovers()
    name = f"{PREFIX}-{os.getpid()}-{_started(os.getpid())}-{next(_counter)}"
    hosts = Hosts(name, count)
    try:
        hosts.build()
        hosts.set_rate(bits_per_second)
        hosts.set_congestion_control(CONGESTION_CONTROL)
        yield hosts
    finally:
        _remove(namespace for namespace in namespaces() if namespace.startswith(f"{name}-"))


def remove_leftovers() -> None:
    """Remove the namespaces of processes that are no more."""
    _remove(namespace for namespace in namespaces() if not _has_owner(namespace))


def namespaces() -> list[str]:
    """All that a run of ours has made, or left behind."""
    names = [line.split()[0] for line in _run("ip", "netns", "list").splitlines() if line]
    return [name for name in names if name.startswith(f"{PREFIX}-") and name.count("-") == 4]


def _has_owner(namespace: str) -> bool:
    _, pid, started, *_ = namespace.split("-")
    return _started(pid) == started


def _started(pid: int | str) -> str | None:
    """When this process started: with it, a pid that the kernel gave away again is told from the one before."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return fields[19]


def _remove(names: Iterator[str]) -> None:
    for name in names:
        subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


def _token_bucket(bits_per_second: float) -> list[str]:
    """Arguments of `tbf`. It counts a packet of 64 KiB as the 45 packets of the wire, headers included."""
    bytes_per_second = bits_per_second / 8
    burst = min(max(bytes_per_second * BURST_SECONDS, LEAST_BURST_BYTES), MOST_BURST_BYTES)
    limit = burst + bytes_per_second * QUEUE_SECONDS
    return ["rate", f"{bits_per_second:.0f}bit", "burst", f"{burst:.0f}", "limit", f"{limit:.0f}"]


def _in(namespace: str, *arguments: str) -> None:
    _run("ip", "-n", namespace, *arguments)


def _run(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except FileNotFoundError as error:
        raise HostsUnavailable(f"no hosts with limited links: there is no command {command[0]!r} (iproute2)") from error
    except subprocess.CalledProcessError as error:
        said = error.stderr.strip() or f"it ended with {error.returncode}"
        raise HostsUnavailable(
            f"no hosts with limited links: `{' '.join(command)}` failed: {said}; "
            "it needs the right to make network namespaces (root, or CAP_SYS_ADMIN and CAP_NET_ADMIN)"
        ) from error
