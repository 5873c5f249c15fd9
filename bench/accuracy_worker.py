"""One rank of the accuracy measurement."""

import json
import sys
from typing import Any

import numpy as np
import uvloop

import ringwide


def gaussian(rank: int, call: int, count: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng([rank, call]).standard_normal(count, np.float32)


def relative(error: Any, exact: Any) -> float:
    return float(np.sqrt(np.mean(np.square(error)) / np.mean(np.square(exact))))


async def errors(
    task: dict[str, Any], peers: list[str], codec: ringwide.CodecName, feedback: bool
) -> tuple[float, float]:
    """Of the first call, and of the sum of all."""
    count, size = task["count"], len(peers)
    config = ringwide.RingConfig(codec=codec, allow_lossy=True, threshold_bytes=0, error_feedback=feedback)
    one, error, total = 0.0, np.zeros(count), np.zeros(count)
    async with ringwide.join(rank=task["rank"], peers=peers, config=config) as ring:
        for call in range(task["calls"]):
            numbers = gaussian(task["rank"], call, count)
            await ring.allreduce(numbers)
            if task["rank"] == 0:
                exact = sum(gaussian(rank, call, count).astype(np.float64) for rank in range(size)) / size
                error, total = error + (numbers - exact), total + exact
                one = one or relative(error, total)
        await ring.barrier()
    return one, relative(error, total) if task["rank"] == 0 else 0.0


async def main(task: dict[str, Any]) -> None:
    cells = []
    for codec in task["codecs"]:
        one, without = await errors(task, task["peers"], codec, feedback=False)
        _, with_feedback = await errors(task, task["peers"], codec, feedback=True)
        cells.append(
            {"codec": codec, "ranks": len(task["peers"]), "one": one, "without": without, "with": with_feedback}
        )
    print(json.dumps(cells))


if __name__ == "__main__":
    uvloop.run(main(json.load(sys.stdin)))
