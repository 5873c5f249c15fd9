"""Failures while DDP trains: every rank gets an error that names them, and trains on where that is possible."""

import signal
from typing import Any

import pytest
from tests.torch_backend.sets import Kind, Nursery

pytestmark = [pytest.mark.system, pytest.mark.timeout(200)]

PATIENCE_SECONDS = 120


def played(nursery: Nursery, act: str, *, size: int, dead: int | None = None, settings: str = "") -> list[Any]:
    """What every rank saw, and None for the one that had to die; all others must have ended as programs do."""
    ended = nursery.run(
        Kind("ringwide", size, "environment"),
        settings={"RINGWIDE_SET": settings} if settings else {},
        act=act,
        arguments={},
        seconds=PATIENCE_SECONDS,
        others_live_on=True,
    )
    saw = [None if rank == dead else ended.result(rank) for rank in range(size)]
    assert ended.codes == [-signal.SIGKILL if rank == dead else 0 for rank in range(size)], ended.logs
    return saw


def test_a_rank_that_is_killed_in_backward_is_named_by_every_other(nursery: Nursery) -> None:
    for saw in played(nursery, "lose_a_rank", size=3, dead=2)[:2]:
        assert saw["kind"] == "RuntimeError", saw
        assert "PeerLost" in saw["text"], saw
        assert "rank 2" in saw["text"], saw
        assert (saw["original"], saw["lost"]) == ("PeerLost", 2), saw


def test_a_rank_that_is_frozen_in_backward_is_named_by_every_other(nursery: Nursery) -> None:
    for saw in played(nursery, "freeze_a_rank", size=3, dead=2, settings="suspect_after_seconds=5")[:2]:
        assert saw["kind"] == "RuntimeError", saw
        assert (saw["original"], saw["lost"]) == ("PeerLost", 2), saw


def test_ranks_that_disagree_in_backward_all_hear_of_it_and_train_on(nursery: Nursery) -> None:
    for saw in played(nursery, "disagree_in_backward", size=2):
        assert saw["kind"] == "RuntimeError", saw
        assert "CollectiveMismatch" in saw["text"], saw
        assert saw["extra"] == "CollectiveMismatch", saw
        assert saw["learnt the same"], saw


def test_a_rank_that_gives_up_in_backward_is_named_and_all_train_on(nursery: Nursery) -> None:
    saw = played(nursery, "give_up_in_backward", size=3, settings="on_nonfinite=raise")
    assert "NonfiniteInput" in saw[0]["text"], saw[0]
    for other in saw[1:]:
        assert "CollectiveAborted" in other["text"], other
        assert "rank 0" in other["text"], other
    assert all(one["learnt the same"] for one in saw), saw


def test_ranks_that_disagree_on_shapes_keep_their_tensors_and_their_group(nursery: Nursery) -> None:
    for saw in played(nursery, "disagree_on_shapes", size=3):
        assert saw["kind"] == "CollectiveMismatch", saw
        assert (saw["intact"], saw["success"], saw["afterwards"]) == (True, False, [3.0] * 4), saw


def test_ctrl_c_ends_the_wait_in_backward(nursery: Nursery) -> None:
    assert played(nursery, "interrupt_a_rank_that_waits", size=2)[0] == {"kind": "KeyboardInterrupt"}
