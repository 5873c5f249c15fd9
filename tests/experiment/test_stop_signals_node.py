import asyncio
import os
import signal

import pytest

from experiment.heeding import heeding  # noqa: F401
from ringwide.experiment.stop_signals import SIGNALS, NodeStop


class Node:
    """Says when it runs and when it was cancelled; ends when it is let go."""

    def __init__(self) -> None:
        self.stopping, self.runs, self.let_go = NodeStop(), asyncio.Event(), asyncio.Event()
        self.cancelled = False

    async def _main(self) -> int:
        self.runs.set()
        try:
            await self.let_go.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        return 7

    async def start(self) -> "asyncio.Task[int]":
        task = asyncio.ensure_future(self.stopping.run(self._main()))
        await self.runs.wait()
        return task


async def send(number: int) -> None:
    """Until the loop has heard it: another handler, set after ours, is told of its own signal."""
    heard, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, heard.set)
    os.kill(os.getpid(), number)
    os.kill(os.getpid(), signal.SIGUSR1)
    await asyncio.wait_for(heard.wait(), 60)
    loop.remove_signal_handler(signal.SIGUSR1)


async def test_without_a_signal_the_code_is_that_of_the_node() -> None:
    node = Node()
    task = await node.start()
    node.let_go.set()
    assert await task == 7


@pytest.mark.parametrize("number", SIGNALS)
async def test_before_training_a_signal_ends_the_node(number: int) -> None:
    node = Node()
    task = await node.start()
    await send(number)
    assert await task == 128 + number
    assert node.cancelled


@pytest.mark.parametrize("number", SIGNALS)
async def test_from_the_first_step_on_a_signal_is_only_noted(number: int) -> None:
    node = Node()
    task = await node.start()
    request = node.stopping.after_a_step()
    assert request.signal == 0
    await send(number)
    assert request.signal == number
    assert not node.cancelled
    node.let_go.set()
    assert await task == 7


async def test_a_second_signal_ends_the_node_all_the_same() -> None:
    node = Node()
    task = await node.start()
    node.stopping.after_a_step()
    await send(signal.SIGINT)
    assert not node.cancelled
    await send(signal.SIGTERM)
    assert await task == 128 + signal.SIGTERM
    assert node.cancelled


async def test_what_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        node = Node()
        task = await node.start()
        await send(signal.SIGHUP)
        assert not node.cancelled
        node.let_go.set()
        assert await task == 7
    finally:
        signal.signal(signal.SIGHUP, before)


async def test_what_was_noted_stays_for_the_next_variant() -> None:
    node = Node()
    task = await node.start()
    node.stopping.after_a_step()
    await send(signal.SIGINT)
    assert node.stopping.after_a_step().signal == signal.SIGINT
    node.let_go.set()
    await task


async def test_a_cancellation_that_no_signal_asked_for_stays_one() -> None:
    node = Node()
    task = await node.start()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_error_of_the_node_comes_out() -> None:
    async def fail() -> int:
        raise OSError("full")

    with pytest.raises(OSError, match="full"):
        await NodeStop().run(fail())
