"""All nodes of an experiment: started together, asked to stop together, and none left behind."""

import asyncio
import signal
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

from ringwide.errors import CollectiveError, PeerLost, RingwideError
from ringwide.experiment.fleet.seam import Exit, Node, Start
from ringwide.experiment.halt import ENDED_BY_SIGNAL, SIGNALS, Halt, until_any

GRACE_SECONDS = 1.0
TERMINATE_SECONDS = 2.0
STOP_SECONDS = 30.0
CONSEQUENCES = {PeerLost.exit_code, CollectiveError.exit_code}
SIGNAL_OF_CODE = {ENDED_BY_SIGNAL + number: int(number) for number in SIGNALS}


class NodeFailed(RingwideError):
    """A node ended with an error; the others were ended."""

    def __init__(self, exit: Exit) -> None:
        words = "".join(f"\n    {line}" for line in exit.last_words)
        super().__init__(f"{exit}; the others were ended. {'Its last words:' if words else 'It said nothing.'}{words}")
        self.rank, self.last_words, self.reason = exit.rank, exit.last_words, str(exit)
        self.exit_code = max(exit.code, 1)


@dataclass(frozen=True, slots=True)
class Ending:
    """How a fleet ended without a failure. `signal`: what it was asked by to stop; 0: it came to its own end."""

    exits: tuple[Exit, ...]
    signal: int = 0
    trouble: str = ""  # who did not stop as asked


async def run_fleet(
    starts: Sequence[Start],
    on_line: Callable[[int, str], None],
    *,
    halt: Halt | None = None,
    can_stop: Callable[[], bool] = lambda: True,
    patience_seconds: float = 0.0,
) -> Ending:
    """Run one node for each rank until all have ended well. Whatever happens, no process is left.

    `can_stop` tells whether the nodes have come so far that they end well when asked; before that they are just ended.
    `patience_seconds`: how much later it may be known that a node is gone than that others have lost it.
    """
    nodes: list[Node] = []
    halt = halt or Halt()
    try:
        for rank, each in enumerate(starts):
            if halt.asked.done():
                return Ending(_exits(nodes), halt.asked.result())
            nodes.append(await each.start(rank, partial(on_line, rank)))
        if await _until_ended_or_asked(nodes, halt, patience_seconds):
            return Ending(_exits(nodes))
        trouble = await _stop(nodes, halt) if can_stop() else ""
        return Ending(_exits(nodes), halt.asked.result(), trouble)
    finally:
        await _end_all(nodes)


def culprit(failed: Sequence[Exit]) -> Exit:
    """Who failed first. A node that lost a peer often ends before that peer does, so those are named last."""
    return next((exit for exit in failed if exit.code not in CONSEQUENCES), failed[0])


async def _until_ended_or_asked(nodes: Sequence[Node], halt: Halt, patience: float) -> bool:
    """True: all nodes have ended well. False: they are to stop, because a person or one of the nodes said so."""
    running = {node.ended for node in nodes}
    while running and not halt.asked.done():
        await until_any(*running, halt.asked)
        ended = {ending for ending in running if ending.done()}
        running -= ended
        for exit in sorted((ending.result() for ending in ended), key=lambda exit: exit.rank):
            if exit.code in SIGNAL_OF_CODE:
                halt.ask(SIGNAL_OF_CODE[exit.code])  # somebody has asked that node
            elif exit.code != 0:
                await _wait(running, GRACE_SECONDS)
                raise NodeFailed(await _culprit(exit, nodes, patience))
    return not halt.asked.done()


async def _culprit(first: Exit, nodes: Sequence[Node], patience: float) -> Exit:
    """Who failed, waited for if all who have ended have only lost a peer."""
    deadline = time.monotonic() + patience
    while (found := culprit(_failed(first, nodes))).code in CONSEQUENCES:
        running = [node.ended for node in nodes if not node.ended.done()]
        left = deadline - time.monotonic()
        if not running or left <= 0:
            break
        await until_any(*running, seconds=left)
    return found


def _failed(first: Exit, nodes: Sequence[Node]) -> list[Exit]:
    return [first, *(exit for exit in _exits(nodes) if exit.code != 0 and exit != first)]


async def _stop(nodes: Sequence[Node], halt: Halt) -> str:
    """Ask every node once, then wait. Returns what did not go well."""
    number = halt.asked.result()
    # A node that has ended so was asked by somebody else, and has agreed with the others before.
    if not any(exit.code == ENDED_BY_SIGNAL + number for exit in _exits(nodes)):
        for node in nodes:
            node.signal(number)
    everyone = asyncio.ensure_future(asyncio.wait([node.ended for node in nodes]))
    await until_any(everyone, halt.insisted, seconds=STOP_SECONDS)
    everyone.cancel()
    late = [node for node in nodes if not node.ended.done()]
    for node in late:
        node.signal(signal.SIGKILL)
    return "; ".join([*(f"node {node.rank} did not stop and was killed" for node in late), *_odd(nodes, number)])


def _odd(nodes: Sequence[Node], number: int) -> list[str]:
    return [str(exit) for exit in _exits(nodes) if exit.code not in (0, ENDED_BY_SIGNAL + number, -number)]


def _exits(nodes: Sequence[Node]) -> tuple[Exit, ...]:
    return tuple(node.ended.result() for node in nodes if node.ended.done())


async def _end_all(nodes: Sequence[Node]) -> None:
    endings = [node.ended for node in nodes]
    try:
        for node in nodes:
            node.signal(signal.SIGTERM)
        await _wait(endings, TERMINATE_SECONDS)
    finally:
        # Also reached when this is cancelled in turn.
        for node in nodes:
            node.signal(signal.SIGKILL)
    await _wait(endings, TERMINATE_SECONDS)
    for ending in endings:
        if ending.done() and not ending.cancelled():
            ending.exception()  # known already, or the same as another's: asyncio need not complain


async def _wait(endings: Collection["asyncio.Future[Exit]"], seconds: float) -> None:
    if endings:
        await asyncio.wait(endings, timeout=seconds)
