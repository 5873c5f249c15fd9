"""All nodes of an experiment on this machine: started together, and none left behind."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from ringwide.errors import CollectiveError, PeerLost, RingwideError
from ringwide.experiment.process import Exit, NodeProcess

GRACE_SECONDS = 1.0
TERMINATE_SECONDS = 2.0
CONSEQUENCES = {PeerLost.exit_code, CollectiveError.exit_code}


class NodeFailed(RingwideError):
    """A node ended with an error; the others were ended."""

    def __init__(self, exit: Exit) -> None:
        words = "".join(f"\n    {line}" for line in exit.last_words)
        super().__init__(f"{exit}; the others were ended. {'Its last words:' if words else 'It said nothing.'}{words}")
        self.rank, self.last_words = exit.rank, exit.last_words
        self.exit_code = max(exit.code, 1)


async def run_fleet(commands: Sequence[Sequence[str]], on_line: Callable[[int, str], None]) -> list[Exit]:
    """Run one command for each rank until all have ended well. Whatever happens, no process is left."""
    nodes: list[NodeProcess] = []
    try:
        for rank, command in enumerate(commands):
            nodes.append(await NodeProcess.start(rank, command, partial(on_line, rank)))
        return await _until_all_ended(nodes)
    finally:
        await _end_all(nodes)


def culprit(failed: Sequence[Exit]) -> Exit:
    """Who failed first. A node that lost a peer often ends before that peer does, so those are named last."""
    return next((exit for exit in failed if exit.code not in CONSEQUENCES), failed[0])


async def _until_all_ended(nodes: Sequence[NodeProcess]) -> list[Exit]:
    exits: list[Exit] = []
    for ending in asyncio.as_completed([node.ended for node in nodes]):
        exits.append(await ending)
        if exits[-1].code != 0:
            await asyncio.wait([node.ended for node in nodes], timeout=GRACE_SECONDS)
            raise NodeFailed(culprit(_failed(exits[-1], nodes)))
    return sorted(exits, key=lambda exit: exit.rank)


def _failed(first: Exit, nodes: Sequence[NodeProcess]) -> list[Exit]:
    ended = [node.ended.result() for node in nodes if node.ended.done()]
    return [first, *(exit for exit in ended if exit.code != 0 and exit != first)]


async def _end_all(nodes: Sequence[NodeProcess]) -> None:
    endings = [node.ended for node in nodes]
    try:
        for node in nodes:
            node.terminate()
        await _wait(endings, TERMINATE_SECONDS)
    finally:
        # Also reached when this is cancelled in turn, by a second Ctrl-C.
        for node in nodes:
            node.kill()
    await _wait(endings, TERMINATE_SECONDS)


async def _wait(endings: Sequence["asyncio.Future[Exit]"], seconds: float) -> None:
    if endings:
        await asyncio.wait(endings, timeout=seconds)
