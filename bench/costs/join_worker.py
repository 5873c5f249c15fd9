"""One rank that does nothing but join, again and again, without torch."""

import json
import sys
from typing import Any

import uvloop

import ringwide
from bench.costs.joining import joining_ring, seconds_to_join


async def main(task: dict[str, Any]) -> None:
    async with ringwide.join(rank=task["rank"], peers=task["peers"]) as starter:
        joins = [joining_ring(task["rank"], peers) for peers in task["joins"]]
        taken = await seconds_to_join(starter, joins)
    assert "torch" not in sys.modules
    print(json.dumps({"ringwide": taken[1:]}))  # the first one warms up


if __name__ == "__main__":
    uvloop.run(main(json.load(sys.stdin)))
