"""Blocking ring for programs without asyncio: the calls of `Ring`, each of which waits for its result.

    with ringwide.join_blocking(rank=0, peers="peers.txt") as ring:
        ring.allreduce(grads)

The ring itself runs on the thread of the background loop (`runtime/background_loop.py`). Calls from several threads
are numbered in the order in which they are made, so all ranks must make them in the same order.
"""

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, overload

from ringwide.config.ring_config import RingConfig
from ringwide.observe.statistics import Statistics
from ringwide.ring import Ring, join
from ringwide.runtime.background_loop import BackgroundLoop, background
from ringwide.runtime.loop_call import Begin
from ringwide.tensors.arithmetic import OpName

T = TypeVar("T")
Tensors = TypeVar("Tensors")
Place = TypeVar("Place")


@contextmanager
def join_blocking(
    *, rank: int, peers: str | os.PathLike[str] | Sequence[str], config: RingConfig | None = None
) -> Iterator["BlockingRing"]:
    """Join the ring for the length of the block. See `join`."""
    background_loop, membership = background(), join(rank=rank, peers=peers, config=config)
    try:
        ring = background_loop.enter(membership)
        ring.made_for(threading.current_thread())
        yield BlockingRing(ring, background_loop)
    except GeneratorExit as error:  # perhaps the garbage collector closes an abandoned block, on any thread
        background_loop.close_soon(membership, error)
        raise
    except BaseException as error:
        background_loop.close_now(membership, error)
        raise
    else:
        background_loop.close_now(membership)


class BlockingRing:
    """Membership of one rank in a ring, for callers that block. The calls are documented at `Ring`."""

    def __init__(self, ring: Ring, background_loop: BackgroundLoop) -> None:
        self._ring, self._background = ring, background_loop

    def __repr__(self) -> str:
        return f"<Blocking{repr(self._ring)[1:]}"

    @property
    def rank(self) -> int:
        return self._ring.rank

    @property
    def size(self) -> int:
        return self._ring.size

    @property
    def config(self) -> RingConfig:
        return self._ring.config

    def allreduce(self, tensors: Tensors, op: OpName = "mean", *, bucket: str = "", channel: str = "") -> Tensors:
        return self._call(lambda: self._ring.allreduce(tensors, op, bucket=bucket, channel=channel))

    def reduce(self, tensors: Tensors, root: int = 0, op: OpName = "mean", *, channel: str = "") -> Tensors:
        return self._call(lambda: self._ring.reduce(tensors, root, op, channel=channel))

    @overload
    def reduce_scatter(
        self, tensor: Tensors, op: OpName = "mean", into: None = None, *, channel: str = ""
    ) -> Tensors: ...
    @overload
    def reduce_scatter(self, tensor: Any, op: OpName = "mean", *, into: Place, channel: str = "") -> Place: ...
    @overload
    def reduce_scatter(self, tensor: Any, op: OpName, into: Place, *, channel: str = "") -> Place: ...
    def reduce_scatter(self, tensor: Any, op: OpName = "mean", into: Any = None, *, channel: str = "") -> Any:
        return self._call(lambda: self._ring.reduce_scatter(tensor, op, into, channel=channel))

    @overload
    def all_gather(self, tensor: Tensors, into: None = None, *, channel: str = "") -> list[Tensors]: ...
    @overload
    def all_gather(self, tensor: Any, into: Place, *, channel: str = "") -> Place: ...
    def all_gather(self, tensor: Any, into: Any = None, *, channel: str = "") -> Any:
        return self._call(lambda: self._ring.all_gather(tensor, into, channel=channel))

    def broadcast(self, tensors: Tensors, root: int = 0, *, channel: str = "") -> Tensors:
        return self._call(lambda: self._ring.broadcast(tensors, root, channel=channel))

    def barrier(self, *, channel: str = "") -> None:
        self._call(lambda: self._ring.barrier(channel=channel))

    def send(self, tensor: Any, to: int, tag: int = 0) -> None:
        self._call(lambda: self._ring.send(tensor, to, tag), by_hand=False)

    def receive(self, tensor: Any, source: int | None = None, tag: int = 0) -> int:
        return self._call(lambda: self._ring.receive(tensor, source, tag), by_hand=False)

    def exchange(
        self, outgoing: Sequence[Any], incoming: Sequence[Any], what: str = "exchange", *, channel: str = ""
    ) -> None:
        self._call(lambda: self._ring.exchange(outgoing, incoming, what, channel=channel), by_hand=False)

    def algorithm_for(self, nbytes: int) -> str:
        return self._ring.algorithm_for(nbytes)

    def statistics(self) -> Statistics:
        return self._call(lambda: _of(self._ring.statistics))

    def state_dict(self) -> dict[str, Any]:
        return self._call(lambda: _of(self._ring.state_dict))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._call(lambda: _of(lambda: self._ring.load_state_dict(state)))

    def _call(self, begin: Begin[T], *, by_hand: bool = True) -> T:
        return self._background.call(begin, by_hand=by_hand)


async def _of(question: Callable[[], T]) -> T:
    """`question` as a coroutine: it runs on the loop's thread, where nothing changes meanwhile."""
    return question()
