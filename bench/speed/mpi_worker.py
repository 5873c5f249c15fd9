"""Ranks of Open MPI and MPICH, which mpirun starts: `Allreduce` of a numpy array, in place."""

from typing import Any

import mpi4py
import numpy as np
from mpi4py import MPI

from bench.speed.conversation import Leader, Message, die_with_parent, serve
from bench.speed.turns import check_sum, expected_sum, time_calls

WORLD = MPI.COMM_WORLD


def carry_out(order: Message) -> Message:
    if order["do"] == "join":
        name, version = MPI.get_vendor()
        return {"versions": {name: ".".join(map(str, version)), "mpi4py": mpi4py.__version__}}
    return {"seconds": turn(order["bytes"], order["calls"])}


def turn(nbytes: int, calls: int) -> list[float]:
    array: Any = np.empty(nbytes // 4, np.float32)
    ranks = WORLD.Get_size()
    seconds = time_calls(calls, ranks, lambda: array.fill(1), lambda: WORLD.Allreduce(MPI.IN_PLACE, array))
    check_sum(bool((array == expected_sum(calls, ranks)).all()), calls, ranks)
    return seconds


if __name__ == "__main__":
    die_with_parent()
    serve(Leader(WORLD.Get_rank()), carry_out)
