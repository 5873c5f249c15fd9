"""Ranks of gloo and of ringwide, with torch tensors: `python -m bench.speed.torch_worker gloo|ringwide RANKS`."""

import functools
import sys
from datetime import timedelta
from importlib.metadata import version

import torch
import torch.distributed as dist
import uvloop

import ringwide
from bench.speed.conversation import Leader, Message, fork_ranks, give_up, serve, serve_awaiting
from bench.speed.turns import check_sum, expected_sum, time_awaited_calls, time_calls

JOIN_SECONDS = 60


class Gloo:
    """torch's own backend for CPUs."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks

    def carry_out(self, order: Message) -> Message:
        if order["do"] == "join":
            return self._join(order)
        tensor = torch.empty(order["bytes"] // 4)
        seconds = time_calls(order["calls"], self._ranks, lambda: tensor.fill_(1), lambda: dist.all_reduce(tensor))
        check(tensor, order["calls"], self._ranks)
        return {"seconds": seconds}

    def _join(self, order: Message) -> Message:
        dist.init_process_group(
            "gloo",
            init_method=f"tcp://{order['addresses'][0]}",
            rank=order["rank"],
            world_size=self._ranks,
            timeout=timedelta(seconds=JOIN_SECONDS),
        )
        return {"versions": {"torch": torch.__version__}}


async def serve_ringwide(leader: Leader) -> None:
    """The ring lives from its order to join to the end of orders."""
    order = leader.order()
    if order is None:
        return
    config = ringwide.RingConfig(start_timeout_seconds=JOIN_SECONDS, **order["settings"])
    async with ringwide.join(rank=order["rank"], peers=order["addresses"], config=config) as ring:
        algorithms = {str(nbytes): ring.algorithm_for(nbytes) for nbytes in order["sizes"]}
        leader.say({"versions": {"ringwide": version("ringwide")}, "algorithms": algorithms})
        await serve_awaiting(leader, functools.partial(ringwide_turn, ring))


async def ringwide_turn(ring: ringwide.Ring, order: Message) -> Message:
    tensor = torch.empty(order["bytes"] // 4)
    seconds = await time_awaited_calls(
        order["calls"], ring.size, lambda: tensor.fill_(1), lambda: ring.allreduce(tensor, op="sum")
    )
    check(tensor, order["calls"], ring.size)
    return {"seconds": seconds}


def check(tensor: torch.Tensor, calls: int, ranks: int) -> None:
    check_sum(bool((tensor == expected_sum(calls, ranks)).all()), calls, ranks)


def run_rank(kind: str, ranks: int, rank: int) -> None:
    torch.set_num_threads(1)  # many ranks on one machine
    leader = Leader(rank)
    if kind == "gloo":
        serve(leader, Gloo(ranks).carry_out)
    else:
        try:
            uvloop.run(serve_ringwide(leader))
        except Exception as error:  # while it joins, or leaves
            give_up(leader, error)


if __name__ == "__main__":
    kind, ranks = sys.argv[1], int(sys.argv[2])
    fork_ranks(ranks, functools.partial(run_rank, kind, ranks))
