"""A worker's side of the talk with the leader: lines of JSON over a loopback socket, standard library only.

A worker says who it is, and then waits for orders. It waits in a read that blocks, so that it takes no part of a core
while others have their turn, whatever its library does when it waits for its own peers.
"""

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

VARIABLE = "BENCH_SPEED_LEADER"  # host:port:token
PR_SET_PDEATHSIG = 1
LONGEST_REASON = 300

Message = dict[str, Any]


class Leader:
    """The connection of one rank to the leader."""

    def __init__(self, rank: int, address: str | None = None) -> None:
        host, port, token = os.environ[VARIABLE].split(":")
        self._socket = socket.create_connection((host, int(port)), timeout=60)
        self._socket.settimeout(None)
        self._lines = self._socket.makefile("r", encoding="utf-8")
        self.say({"token": token, "rank": rank, "address": address})

    def order(self) -> Message | None:
        """The next one; none when the leader is done, or is no more."""
        try:
            line = self._lines.readline()
        except OSError:
            return None
        return json.loads(line) if line.endswith("\n") else None

    def say(self, message: Message) -> None:
        self._socket.sendall(json.dumps(message).encode() + b"\n")


def serve(leader: Leader, carry_out: Callable[[Message], Message]) -> None:
    """Carry out orders until there are no more. The first that fails is told to the leader, and is the last."""
    while (order := leader.order()) is not None:
        try:
            answer = carry_out(order)
        except Exception as error:
            give_up(leader, error)
        leader.say(answer)


async def serve_awaiting(leader: Leader, carry_out: Callable[[Message], Awaitable[Message]]) -> None:
    """The same for a contestant that lives on an event loop: a thread waits, so that the loop may live on."""
    while (order := await asyncio.to_thread(leader.order)) is not None:
        try:
            answer = await carry_out(order)
        except Exception as error:
            give_up(leader, error)
        leader.say(answer)


def give_up(leader: Leader, error: Exception) -> None:
    """Tell the leader, if it is still there, and end."""
    traceback.print_exc()
    sys.stderr.flush()
    with contextlib.suppress(OSError):
        leader.say({"failed": f"{type(error).__name__}: {' '.join(str(error).split())}"[:LONGEST_REASON]})
    os._exit(1)  # whatever its library would like to wait for


def fork_ranks(count: int, run: Callable[[int], None]) -> None:
    """All ranks from a process that has imported what they need; its end is theirs, and it ends when they have."""
    children = [_fork(run, rank) for rank in range(count)]
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    sys.exit(int(any(codes)))


def _fork(run: Callable[[int], None], rank: int) -> int:
    child = os.fork()
    if child:
        return child
    die_with_parent()
    code = 1
    try:
        run(rank)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def die_with_parent() -> None:
    """The kernel ends this process when its parent ends, however that ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
