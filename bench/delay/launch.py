"""Ranks that are far from each other: the proxy's process and those of the ranks, started, awaited and ended."""

import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.fleet import ask_workers, rings_of_addresses
from ringwide.experiment.find_peers import free_ports

ENDING_SECONDS = 10
OUTGOING_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
BELOW_OUTGOING_PORTS, ABOVE_OUTGOING_PORTS = range(0x2800, 0x8000, 0x100), range(0xEEFF, 0x10000, 0x100)
"""Lower and higher than those, also if their two bytes are swapped: gloo compares ports as they lie in memory."""


@dataclass(frozen=True, slots=True)
class Link:
    """What lies between any two ranks."""

    round_trip_seconds: float
    window_bytes: int
    bytes_per_second: float | None = None


@contextmanager
def proxy_before(targets: Sequence[str], ports: Mapping[str, int], link: Link) -> Iterator[list[str]]:
    """Where to find these addresses for the length of the block, at the other end of such a link."""
    command = [sys.executable, "-m", "bench.delay.proxy"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps({"targets": list(targets), "ports": dict(ports), **asdict(link)}) + "\n")
            process.stdin.flush()
            said = process.stdout.readline()  # or nothing, if it has ended
            if not said:
                raise SystemExit("bench: the proxy failed, see above")
            yield json.loads(said)
            process.stdin.close()
            process.wait(ENDING_SECONDS)
        finally:
            process.kill()


def play(
    link: Link, *, ranks: int, lanes: Sequence[int], nbytes: int, rounds: int, gloo: bool = False
) -> dict[str, list[float]]:
    """The turns of gloo, if it takes part, and of each number of lanes: the seconds of the slowest rank."""
    *listening, stores = rings_of_addresses(len(lanes) + 1, ranks, None)
    with tempfile.TemporaryDirectory() as folder:
        behind = gloo_ports(folder) if gloo else {}
        targets = [address for ring in listening for address in ring]
        with proxy_before([*targets, *behind], behind, link) as found:
            task: dict[str, Any] = {
                "lanes": list(lanes),
                "bytes": nbytes,
                "rounds": rounds,
                "listening": listening,
                "peers": [found[ring * ranks : (ring + 1) * ranks] for ring in range(len(lanes))],
                "gloo": list(behind.items()),
                "store": stores[0],
            }
            told = ask_workers("bench.delay.worker", [{**task, "rank": rank} for rank in range(ranks)])
    return {name: [max(turn) for turn in zip(*(of[name] for of in told), strict=True)] for name in told[0]}


def gloo_ports(folder: str) -> dict[str, int]:
    """For both ranks the file that will name the port at which gloo listens, and the port of the proxy before it."""
    chance = random.Random()
    (low,), (high,) = (free_ports(1, chance, ports) for ports in (BELOW_OUTGOING_PORTS, ABOVE_OUTGOING_PORTS))
    return {f"{folder}/0": low, f"{folder}/1": high}


def why_no_gloo(ranks: int) -> str | None:
    """What stands in its way here; see bench/delay/gloo.py."""
    if ranks != 2:
        return f"gloo passes the proxy only between two ranks, not between {ranks}"
    first, last = map(int, OUTGOING_PORTS.read_text().split())
    if first <= BELOW_OUTGOING_PORTS[-1] or last >= ABOVE_OUTGOING_PORTS[0]:
        return f"gloo would need ports below and above those of outgoing connections, and those are {first} to {last}"
    return None
