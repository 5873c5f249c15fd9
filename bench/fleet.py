"""Starts the same worker in several processes and collects what rank 0 found."""

import json
import socket
import subprocess
import sys
from typing import Any


def free_addresses(count: int) -> list[str]:
    """Loopback addresses that nobody uses at the moment."""
    sockets = [socket.socket() for _ in range(count)]
    for sock in sockets:
        sock.bind(("127.0.0.1", 0))
    addresses = [f"127.0.0.1:{sock.getsockname()[1]}" for sock in sockets]
    for sock in sockets:
        sock.close()
    return addresses


def run_workers(module: str, ranks: int, task: dict[str, Any], *, timeout_seconds: float = 900) -> Any:
    """Run `python -m module` once per rank with the task on stdin; the answer is rank 0's last line, as JSON."""
    task = {**task, "peers": free_addresses(ranks), "store": free_addresses(1)[0]}
    workers = [
        subprocess.Popen([sys.executable, "-m", module], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(ranks)
    ]
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
