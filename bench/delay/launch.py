"""Ranks that are far from each other: the proxy's process and those of the ranks, started, awaited and ended."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from bench.fleet import ask_workers, rings_of_addresses

ENDING_SECONDS = 10


@dataclass(frozen=True, slots=True)
class Link:
    """What lies between any two ranks."""

    round_trip_seconds: float
    window_bytes: int
    bytes_per_second: float | None = None


@contextmanager
def proxy_before(targets: Sequence[str], link: Link) -> Iterator[list[str]]:
    """Where to find these addresses for the length of the block, at the other end of such a link."""
    command = [sys.executable, "-m", "bench.delay.proxy"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps({"targets": list(targets), **asdict(link)}) + "\n")
            process.stdin.flush()
            said = process.stdout.readline()  # or nothing, if it has ended
            if not said:
                raise SystemExit("bench: the proxy failed, see above")
            yield json.loads(said)
            process.stdin.close()
            process.wait(ENDING_SECONDS)
        finally:
            process.kill()


def play(link: Link, *, ranks: int, lanes: Sequence[int], nbytes: int, rounds: int) -> list[list[float]]:
    """For each number of lanes its turns: the seconds of the slowest rank."""
    listening = rings_of_addresses(len(lanes), ranks, None)
    with proxy_before([address for ring in listening for address in ring], link) as found:
        peers = [found[ring * ranks : (ring + 1) * ranks] for ring in range(len(lanes))]
        task: dict[str, Any] = {
            "lanes": list(lanes),
            "bytes": nbytes,
            "rounds": rounds,
            "listening": listening,
            "peers": peers,
        }
        told = ask_workers("bench.delay.worker", [{**task, "rank": rank} for rank in range(ranks)])
    return [[max(turn) for turn in zip(*of_ranks, strict=True)] for of_ranks in zip(*told, strict=True)]
