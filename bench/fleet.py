"""Starts the same worker in several processes, here or one a host, and collects what the ranks found."""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from bench.hosts import INTERFACE, Hosts
from ringwide.bootstrap.rendezvous import LOOPBACK
from ringwide.experiment.find_peers import free_ports

FIRST_PORT = 29500  # in a host every port is free


def free_addresses(count: int) -> list[str]:
    """Loopback addresses that nobody uses at the moment, nor is given for a connection of its own."""
    return [f"{LOOPBACK}:{port}" for port in free_ports(count, random.Random())]


def rings_of_addresses(count: int, ranks: int, hosts: Hosts | None) -> list[list[str]]:
    """Addresses for several rings of the same ranks: one list of peers a ring."""
    if hosts is not None:
        return [[f"{host.address}:{FIRST_PORT + ring}" for host in hosts] for ring in range(count)]
    free = free_addresses(count * ranks)
    return [free[ring * ranks : (ring + 1) * ranks] for ring in range(count)]


def run_workers(
    module: str,
    ranks: int,
    task: dict[str, Any],
    *,
    hosts: Hosts | None = None,
    rings: int = 1,
    timeout_seconds: float = 900,
) -> Any:
    """Run `python -m module` once per rank with the task on stdin; the answer is rank 0's last line, as JSON.

    The task gets `peers`, a list of addresses, or `rings` such lists if there are more; and `store`, for gloo. Without
    hosts everything runs on loopback.
    """
    *peers, store = rings_of_addresses(rings + 1, ranks, hosts)
    task = {**task, "peers": peers[0] if rings == 1 else peers, "store": store[0]}
    tasks = [{**task, "rank": rank} for rank in range(ranks)]
    return _answer(_outputs(module, tasks, hosts, timeout_seconds)[0])


def ask_workers(module: str, tasks: Sequence[dict[str, Any]], *, timeout_seconds: float = 900) -> list[Any]:
    """Run `python -m module` once per task, each with its own on stdin; the answers are their last lines, as JSON."""
    return [_answer(output) for output in _outputs(module, tasks, None, timeout_seconds)]


def _answer(output: str) -> Any:
    return json.loads(output.splitlines()[-1])


def _outputs(module: str, tasks: Sequence[dict[str, Any]], hosts: Hosts | None, timeout_seconds: float) -> list[str]:
    deadline = time.monotonic() + timeout_seconds
    workers: list[subprocess.Popen[str]] = []
    try:
        for rank, task in enumerate(tasks):
            workers.append(_start(module, rank, hosts))
            _tell(workers[-1], task)
        outputs = []
        for rank, worker in enumerate(workers):
            outputs.append(worker.communicate(timeout=deadline - time.monotonic())[0])
            if worker.returncode:  # the others may wait for it for ever
                raise SystemExit(f"bench: rank {rank} failed, see above")
    except subprocess.TimeoutExpired:
        raise SystemExit(f"bench: {module} has not ended within {timeout_seconds:g} s") from None
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    return outputs


def _tell(worker: "subprocess.Popen[str]", task: dict[str, Any]) -> None:
    assert worker.stdin is not None
    worker.stdin.write(json.dumps(task))
    worker.stdin.close()
    worker.stdin = None


def _start(module: str, rank: int, hosts: Hosts | None) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", module]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # many ranks share the cores
    if hosts is not None:
        command = hosts[rank].command(command)
        environment["GLOO_SOCKET_IFNAME"] = INTERFACE
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
