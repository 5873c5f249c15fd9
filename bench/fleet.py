"""Starts the same worker in several processes, here or one a host, and collects what rank 0 found."""

import json
import os
import socket
import subprocess
import sys
from typing import Any

from bench.hosts import INTERFACE, Hosts

FIRST_PORT = 29500  # in a host every port is free


def free_addresses(count: int) -> list[str]:
    """Loopback addresses that nobody uses at the moment."""
    sockets = [socket.socket() for _ in range(count)]
    for sock in sockets:
        sock.bind(("127.0.0.1", 0))
    addresses = [f"127.0.0.1:{sock.getsockname()[1]}" for sock in sockets]
    for sock in sockets:
        sock.close()
    return addresses


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
    workers = [_start(module, rank, hosts) for rank in range(ranks)]
    try:
        for rank, worker in enumerate(workers):
            assert worker.stdin is not None
            worker.stdin.write(json.dumps({**task, "rank": rank}))
            worker.stdin.close()
            worker.stdin = None
        outputs = [worker.communicate(timeout=timeout_seconds)[0] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    failed = [rank for rank, worker in enumerate(workers) if worker.returncode]
    if failed:
        raise SystemExit(f"bench: ranks {failed} failed, see above")
    return json.loads(outputs[0].splitlines()[-1])


def _start(module: str, rank: int, hosts: Hosts | None) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", module]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # many ranks share the cores
    if hosts is not None:
        command = hosts[rank].command(command)
        environment["GLOO_SOCKET_IFNAME"] = INTERFACE
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
