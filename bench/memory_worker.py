"""One rank of the memory benchmark: what a large all-reduce adds to this process, at its peak and over many calls."""

import json
import sys
from typing import Any

import torch
import uvloop

import ringwide
from bench.own_figures import forget_peak, peak_resident_bytes, resident_bytes

MIB = 2**20


async def main(task: dict[str, Any]) -> None:
    async with ringwide.join(rank=task["rank"], peers=task["peers"]) as ring:
        await ring.allreduce(torch.ones(10))
        tensor = torch.ones(task["bytes"] // 4)
        forget_peak()
        before = resident_bytes()
        peaks = []
        for _ in range(task["calls"]):
            await ring.allreduce(tensor, op="max")
            peaks.append((peak_resident_bytes() - before) / MIB)
    print(json.dumps({"bucket": task["bytes"] / MIB, "first": peaks[0], "tenth": peaks[9], "last": peaks[-1]}))


if __name__ == "__main__":
    torch.set_num_threads(1)
    uvloop.run(main(json.load(sys.stdin)))
