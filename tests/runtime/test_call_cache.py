"""Tensors such as were reduced before begin at once; whatever is different in any way is told apart."""

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from local_ring import on_every_rank
from ringwide import CollectiveMismatch, Ring
from ringwide.runtime.call_cache import SmallTensorCache

COUNT = 6


def array(rank: int) -> Any:
    return np.full(COUNT, rank + 1.0, np.float32)


def tensor(rank: int) -> Any:
    return torch.full((COUNT,), rank + 1.0)


ONES = {
    "an array": array,
    "a tensor": tensor,
    "of two dimensions": lambda rank: tensor(rank).view(2, 3),
    "whose gradient is wanted": lambda rank: tensor(rank).requires_grad_(),
    "every other element": lambda rank: tensor(rank).repeat_interleave(2)[::2],
    "every other element of an array": lambda rank: array(rank).repeat(2)[::2],
    "a parameter": lambda rank: torch.nn.Parameter(tensor(rank)),
    "of half precision": lambda rank: tensor(rank).half(),
    "of 16 bits": lambda rank: tensor(rank).bfloat16(),
    "of double precision": lambda rank: tensor(rank).double(),
    "of whole numbers": lambda rank: tensor(rank).int(),
    "of no elements": lambda rank: tensor(rank)[:0],
    "a single number": lambda rank: torch.tensor(rank + 1.0),
}


def held(value: Any) -> list[float]:
    return [float(number) for number in np.asarray(value.detach().float() if hasattr(value, "detach") else value).flat]


@pytest.mark.parametrize("one", ONES.values(), ids=ONES)
async def test_the_same_sums_after_an_array_and_a_tensor_have_become_familiar(one: Callable[[int], Any]) -> None:
    async def act(ring: Ring) -> list[list[float]]:
        for known in (array(0), tensor(0), np.zeros((2, 3), np.float32)):
            await ring.allreduce(known, op="sum")
        values = [one(ring.rank) for _ in range(3)]
        return [held(await ring.allreduce(value, op="sum")) for value in values]

    for sums in await on_every_rank(2, act):
        assert sums == [[3.0] * len(sums[0])] * 3


async def test_what_was_called_with_another_operation_is_not_taken_for_the_same() -> None:
    async def act(ring: Ring) -> list[list[float]]:
        return [held(await ring.allreduce(tensor(ring.rank), op=op)) for op in ("sum", "max", "mean", "sum")]

    assert await on_every_rank(2, act) == [[[number] * COUNT for number in (3.0, 2.0, 1.5, 3.0)]] * 2


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
async def test_what_cannot_be_reduced_is_refused_also_when_its_like_is_familiar() -> None:
    async def act(ring: Ring) -> None:
        await ring.allreduce(array(0))
        closed = array(0)
        closed.flags.writeable = False
        with pytest.raises(ValueError, match="the result is written into it"):
            await ring.allreduce(closed)
        await ring.allreduce(torch.ones(2, 3))
        with pytest.raises(TypeError, match="dense"):
            await ring.allreduce(torch.ones(2, 3).to_sparse_csr())
        with pytest.raises(ValueError, match="expanded"):
            await ring.allreduce(torch.ones(1).expand(COUNT))

    await on_every_rank(1, act)


async def test_a_familiar_tensor_is_as_before_if_its_call_fails() -> None:
    async def act(ring: Ring) -> list[float]:
        await ring.allreduce(tensor(ring.rank))
        mine = tensor(ring.rank)
        with pytest.raises(CollectiveMismatch):
            await ring.allreduce(mine, op="max" if ring.rank else "mean")
        return held(mine)

    assert await on_every_rank(2, act) == [[1.0] * COUNT, [2.0] * COUNT]


async def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ringwide.runtime.call_cache._REMEMBERED", 3)

    async def act(ring: Ring) -> None:
        for count in range(1, 8):
            await ring.allreduce(np.ones(count))
            assert len(ring._small_tensors._known) <= 3

    await on_every_rank(1, act)


def test_strangers_are_not_found() -> None:
    familiar = SmallTensorCache()
    for value in (array(0), tensor(0), [array(0)], {"a": array(0)}, 1.0, None, "text"):
        assert familiar.find(value, "sum", "") is None


async def test_calls_that_never_sleep_leave_others_their_turn() -> None:
    async def act(ring: Ring) -> bool:
        had_its_turn = False

        async def another() -> None:
            nonlocal had_its_turn
            had_its_turn = True

        task = asyncio.create_task(another())
        for _ in range(100_000):  # alone in the ring: each is over when it has begun
            await ring.allreduce(np.ones(1))
            if had_its_turn:
                return True
        await task
        return False

    assert await on_every_rank(1, act) == [True]


def moved(tensor: Any) -> None:
    tensor.set_(torch.full((9,), 7.0))


def elsewhere(tensor: Any) -> None:
    tensor.data = torch.full((3, 3), 7.0)


def turned(tensor: Any) -> None:
    tensor[:] = 7.0
    tensor.t_()  # the same memory and shape, in another order


def shorter(tensor: Any) -> None:
    tensor.resize_(2)
    tensor[:] = 7.0


def reinterpreted(tensor: Any) -> None:
    tensor.data = tensor.view(torch.int32)
    tensor[:] = -7  # as a float: NaN


@pytest.mark.parametrize("change", [moved, elsewhere, turned, shorter, reinterpreted])
async def test_a_tensor_that_lies_elsewhere_than_before_is_found_there(change: Callable[[Any], None]) -> None:
    async def act(ring: Ring) -> tuple[list[float], list[float]]:
        mine = torch.ones(3, 3)
        for known in (torch.ones(9), torch.ones(2), torch.ones(3, 3, dtype=torch.int32), mine, mine):
            await ring.allreduce(known, op="sum")
        before = held(mine)
        change(mine)
        await ring.allreduce(mine, op="sum")
        return before, held(mine)

    for before, after in await on_every_rank(2, act):
        assert before == [4.0] * 9
        assert [abs(number) for number in after] == [14.0] * len(after)


async def test_few_tensors_are_kept() -> None:
    async def act(ring: Ring) -> int:
        for _ in range(100):
            await ring.allreduce(torch.ones(5))
        return len(ring._small_tensors._views)

    assert await on_every_rank(1, act) < [9]


async def test_a_tensor_with_the_negative_bit_goes_the_general_way_each_time() -> None:
    async def act(ring: Ring) -> list[float]:
        sums = []
        for _ in range(3):
            negative = torch._neg_view(torch.full((3,), -1.0))
            sums.append(float((await ring.allreduce(negative, op="sum"))[0]))
        return sums

    assert await on_every_rank(2, act) == [[2.0] * 3] * 2


async def test_a_root_that_is_no_integer_is_named() -> None:
    async def act(ring: Ring) -> str:
        with pytest.raises(TypeError) as caught:
            await ring.broadcast(np.zeros(2), root="0")  # type: ignore[arg-type]
        return str(caught.value)

    assert await on_every_rank(2, act) == ["root '0' is a str; it must be an integer"] * 2
