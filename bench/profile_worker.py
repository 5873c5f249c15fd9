"""One rank that is looked at: rank 0 lets perf record its own process while all ranks make calls."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
import uvloop

import ringwide

PATIENCE_SECONDS = 30


async def profile(ring: ringwide.Ring, nbytes: int, task: dict[str, Any]) -> dict[str, Any]:
    tensor = torch.zeros(nbytes // 4)
    await calls_for(ring, tensor, 0.5)  # warms up
    perf = start_perf(Path(task["directory"]) / str(nbytes)) if ring.rank == 0 else None
    before = processor_seconds()
    calls = await calls_for(ring, tensor, task["seconds"])
    taken = processor_seconds() - before
    if perf is not None:
        perf.send_signal(signal.SIGINT)  # it writes down what it has
        perf.wait(PATIENCE_SECONDS)
    return {"bytes": nbytes, "calls": calls, "processor_seconds": taken / calls}


async def calls_for(ring: ringwide.Ring, tensor: torch.Tensor, seconds: float) -> int:
    """Rank 0 says when it is enough, in front of every few calls."""
    calls, until, go_on = 0, time.perf_counter() + seconds, torch.ones(1)
    while True:
        go_on.fill_(ring.rank > 0 or time.perf_counter() < until)
        await ring.allreduce(go_on, op="min")
        if not go_on:
            return calls
        for _ in range(max(1, 2**22 // tensor.nbytes)):
            await ring.allreduce(tensor, op="sum")
            calls += 1


def start_perf(path: Path) -> "subprocess.Popen[bytes]":
    command = ["perf", "record", "--freq", "999", "--pid", str(os.getpid()), "--output", str(path)]
    perf = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(0.3)  # until it looks
    if perf.poll() is not None:
        raise SystemExit("bench: perf does not look at a process of ours: is it installed, and allowed to?")
    return perf


def processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def main(task: dict[str, Any]) -> None:
    config = ringwide.RingConfig(same_host=task["same_host"])
    async with ringwide.join(rank=task["rank"], peers=task["peers"], config=config) as ring:
        cells = [await profile(ring, nbytes, task) for nbytes in task["sizes"]]
    print(json.dumps(cells))


if __name__ == "__main__":
    torch.set_num_threads(1)  # many ranks on one machine
    uvloop.run(main(json.load(sys.stdin)))
