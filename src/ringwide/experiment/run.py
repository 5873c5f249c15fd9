"""A whole experiment on this machine: every node its own process, watched, and summed up."""

import os
import random
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TextIO

from ringwide.errors import RingwideError
from ringwide.experiment import summary
from ringwide.experiment.config import ExperimentConfig, load_experiment
from ringwide.experiment.fleet import run_fleet
from ringwide.experiment.messages import decode
from ringwide.experiment.ports import free_ports, write_peers
from ringwide.experiment.view import View, view_for
from ringwide.training.progress import Result, Step


async def run_experiment(path: Path, out: TextIO) -> int:
    config = load_experiment(path)
    print(f"{config.name}: starting {config.nodes} nodes on this machine", file=out, flush=True)
    started = time.monotonic()
    with TemporaryDirectory(prefix="ringwide-") as directory:
        peers = Path(directory, "peers.txt")
        write_peers(peers, free_ports(config.nodes, random.Random()))
        results = await _watched(config, commands(path, peers, config.nodes), out)
    print(summary.table(results), file=out)
    print(f"{summary.check_equal(results)}; {time.monotonic() - started:.1f} s in all", file=out)
    return 0


def commands(experiment: Path, peers: Path, nodes: int) -> list[list[str]]:
    node = [sys.executable, "-m", "ringwide.node", "--json", "--parent", str(os.getpid())]
    given = ["--peers", str(peers), "--config", str(experiment)]
    return [[*node, *given, "--rank", str(rank)] for rank in range(nodes)]


async def _watched(config: ExperimentConfig, commands: list[list[str]], out: TextIO) -> dict[int, Result]:
    results: dict[int, Result] = {}
    with view_for(config.nodes, out) as view:
        exits = await run_fleet(commands, lambda rank, line: _heard(rank, line, view, results))
    for remark in summary.remarks({exit.rank: exit.last_words for exit in exits}):
        print(remark, file=sys.stderr)
    if silent := sorted(set(range(config.nodes)) - set(results)):
        raise RingwideError(f"node {silent[0]} ended well, but without a result")
    return results


def _heard(rank: int, line: str, view: View, results: dict[int, Result]) -> None:
    match decode(line):
        case Step() as step:
            view.update(rank, step)
        case Result() as result:
            results[rank] = result
