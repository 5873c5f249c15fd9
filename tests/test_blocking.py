"""The ring for programs without asyncio: ranks are threads here, on the one loop of this process."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import ringwide
from local_ring import free_peers

Act = Callable[[ringwide.BlockingRing], Any]


def on_every_rank(size: int, act: Act, **settings: Any) -> list[Any]:
    """What it returns on each rank, or the exception that it raised there."""
    peers = free_peers(size)

    def one_rank(rank: int) -> Any:
        try:
            config = ringwide.RingConfig(**settings)
            with ringwide.join_blocking(rank=rank, peers=peers, config=config) as ring:
                return act(ring)
        except Exception as error:
            return error

    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(one_rank, range(size)))


def test_every_call_waits_for_its_result() -> None:
    def act(ring: ringwide.BlockingRing) -> dict[str, Any]:
        mine = np.full(4, ring.rank + 1.0, np.float32)
        return {
            "who": (ring.rank, ring.size),
            "mean": ring.allreduce(mine.copy()).tolist(),
            "sum": ring.allreduce({"a": mine.copy()}, op="sum")["a"].tolist(),
            "shares": ring.reduce_scatter(np.arange(3.0), op="sum").tolist(),
            "gathered": [part[0] for part in ring.all_gather(mine)],
            "root's": ring.broadcast(mine.copy(), root=2).tolist(),
            "barrier": ring.barrier(),
            "reduced": ring.reduce(mine.copy(), root=1, op="sum")[0],
            "into": ring.all_gather(mine[:1], into=np.empty(3, np.float32)).tolist(),
            "message": _pass_on(ring),
            "exchanged": _exchange(ring),
            "collectives": ring.statistics().collectives > 5,
            "state": ring.state_dict(),
            "algorithm": ring.algorithm_for(1) == "tree",
            "repr": repr(ring).startswith("<BlockingRing rank"),
        }

    for rank, said in enumerate(on_every_rank(3, act, messages=True)):
        assert said == {
            "who": (rank, 3),
            "mean": [2.0] * 4,
            "sum": [6.0] * 4,
            "shares": [3.0 * rank],
            "gathered": [1.0, 2.0, 3.0],
            "root's": [3.0] * 4,
            "barrier": None,
            "reduced": 6.0 if rank == 1 else rank + 1.0,
            "into": [1.0, 2.0, 3.0],
            "message": [(rank + 2) % 3, (rank + 2) % 3],
            "exchanged": [rank, 10 + rank, 20 + rank],
            "collectives": True,
            "state": {},
            "algorithm": True,
            "repr": True,
        }


def _pass_on(ring: ringwide.BlockingRing) -> list[int]:
    """Rank 0 begins: a call waits, so not all can send at once."""
    got = np.empty(1, np.int64)
    if ring.rank == 0:
        ring.send(np.array([0]), to=1)
    source = ring.receive(got)
    if ring.rank:
        ring.send(np.array([ring.rank]), to=(ring.rank + 1) % ring.size)
    return [source, int(got[0])]


def _exchange(ring: ringwide.BlockingRing) -> list[int]:
    incoming = [np.empty(1, np.int64) for _ in range(ring.size)]
    ring.exchange([np.array([10 * ring.rank + to]) for to in range(ring.size)], incoming)
    return [int(part[0]) for part in incoming]


def test_errors_are_raised_where_the_call_was_made_and_the_ring_goes_on() -> None:
    def act(ring: ringwide.BlockingRing) -> list[float]:
        brought = np.ones(4 + ring.rank)
        with pytest.raises(ringwide.CollectiveMismatch):
            ring.allreduce(brought)
        assert brought.tolist() == [1.0] * (4 + ring.rank)
        return ring.allreduce(np.ones(2), op="sum").tolist()

    assert on_every_rank(2, act) == [[2.0, 2.0]] * 2


def test_one_that_ends_with_an_error_says_goodbye() -> None:
    def act(ring: ringwide.BlockingRing) -> None:
        if ring.rank == 0:
            raise LookupError("of the program's own")
        ring.allreduce(np.ones(2))

    own, others = on_every_rank(2, act)
    assert isinstance(own, LookupError)
    assert isinstance(others, ringwide.PeerLeft)
    assert "LookupError" in str(others)


def test_a_program_that_exits_inside_does_not_end_the_loop() -> None:
    """SystemExit and Ctrl-C are for the program's thread; on the loop they would end everybody's rings."""

    def act(ring: ringwide.BlockingRing) -> None:
        if ring.rank == 0:
            raise SystemExit(3)
        ring.barrier()

    peers, seen = free_peers(2), {}

    def one_rank(rank: int) -> None:
        try:
            with ringwide.join_blocking(rank=rank, peers=peers) as ring:
                act(ring)
        except BaseException as error:
            seen[rank] = error

    threads = [threading.Thread(target=one_rank, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert isinstance(seen[0], SystemExit)
    assert isinstance(seen[1], ringwide.PeerLeft)
    assert "it ended with SystemExit" in str(seen[1])
    assert on_every_rank(2, lambda ring: ring.rank) == [0, 1]


def test_calls_of_a_left_ring_say_so() -> None:
    rings: list[ringwide.BlockingRing] = []
    on_every_rank(1, rings.append)
    with pytest.raises(ringwide.RingClosed):
        rings[0].barrier()


def test_who_cannot_join_hears_why() -> None:
    with (
        pytest.raises(ringwide.ConfigError, match="rank 5 is out of range"),
        ringwide.join_blocking(rank=5, peers=["127.0.0.1:1"]),
    ):
        pass
