"""One rank of the memory benchmark: what a large all-reduce adds to this process, at its peak and over many calls."""

import json
import sys
from pathlib import Path
from typing import Any

import torch
import uvloop

import ringwide

MIB = 2**20


def status_mib(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field + ":")) / 1024


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


async def main(task: dict[str, Any]) -> None:
    async with ringwide.join(rank=task["rank"], peers=task["peers"]) as ring:
        await ring.allreduce(torch.ones(10))
        tensor = torch.ones(task["bytes"] // 4)
        forget_peak()
        before = status_mib("VmRSS")
        peaks = []
        for _ in range(task["calls"]):
            await ring.allreduce(tensor, op="max")
            peaks.append(status_mib("VmHWM") - before)
    print(json.dumps({"bucket": task["bytes"] / MIB, "first": peaks[0], "tenth": peaks[9], "last": peaks[-1]}))


if __name__ == "__main__":
    torch.set_num_threads(1)
    uvloop.run(main(json.load(sys.stdin)))
