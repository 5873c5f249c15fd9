"""All-reduces of sparse tensors: every rank has entries of its own, and all get the same sum."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.torch_backend.two_threads import outcomes, require_right_sums
from torch.distributed import HashStore

import ringwide
from ringwide.torch.init_group import form
from ringwide.torch.process_group import RingProcessGroup
from ringwide.torch.work import RingWork

Tensor = torch.Tensor
SHAPE = (7, 3)


def rows(indices: list[int], values: list[float], dtype: torch.dtype = torch.float32) -> Tensor:
    """A sparse tensor with whole rows of these values. An index may come twice."""
    given = torch.tensor(values, dtype=dtype).reshape(-1, 1).expand(-1, SHAPE[1])
    return torch.sparse_coo_tensor(torch.tensor([indices], dtype=torch.int64), given, SHAPE, check_invariants=True)


BROUGHT: dict[str, tuple[Tensor, Tensor]] = {
    "the same entries": (rows([1, 2], [1, 2]), rows([1, 2], [3, 4])),
    "other entries": (rows([0, 6], [1, 2]), rows([3], [4])),
    "more of them": (rows([0, 1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6, 7]), rows([2], [4])),
    "nothing on one rank": (rows([], []), rows([2], [4])),
    "nothing at all": (rows([], []), rows([], [])),
    "an entry twice": (rows([2, 2], [1, 2]), rows([2], [4])),
    "entries that cancel out": (rows([2], [4]), rows([2], [-4])),
    "integers": (rows([1], [2**40], torch.int64), rows([1, 4], [1, 2**50], torch.int64)),
    "bfloat16": (rows([1], [1.5], torch.bfloat16), rows([1, 4], [1, 2], torch.bfloat16)),
    "float16": (rows([1, 1], [1.5, 2], torch.float16), rows([1, 4], [1, 2], torch.float16)),
    "complex numbers": (rows([1], [1], torch.complex64) * 1j, rows([1, 4], [1, 2], torch.complex64)),
    "no dense dimension": (torch.eye(4).to_sparse(), torch.ones(4, 4).to_sparse()),
    "numbers that do not add up exactly": (rows([1], [0.1]), rows([1], [0.2])),
}


@pytest.mark.parametrize("name", BROUGHT)
def test_a_sum_is_that_of_dense_tensors(groups: list[RingProcessGroup], name: str) -> None:
    given = BROUGHT[name]
    own = {group: given[group.rank()].clone() for group in groups}
    assert outcomes(groups, lambda group: group.allreduce([own[group]])) == [None, None]
    for total in own.values():
        assert total.is_coalesced()
        assert total.dtype is given[0].dtype
        assert torch.equal(total.to_dense(), given[0].to_dense() + given[1].to_dense())
        found = [row for one in given for row in one.coalesce().indices()[0].tolist()]
        assert set(total.indices()[0].tolist()) == set(found)


def test_a_mean_is_a_sum_divided_by_the_size(groups: list[RingProcessGroup]) -> None:
    own = {group: rows([group.rank()], [3]) for group in groups}
    assert outcomes(groups, lambda group: group.allreduce([own[group]], dist.ReduceOp.AVG)) == [None, None]
    assert all(torch.equal(mean.to_dense(), rows([0, 1], [1.5, 1.5]).to_dense()) for mean in own.values())


def test_complex_numbers_that_torch_shows_as_pairs_are_written(groups: list[RingProcessGroup]) -> None:
    """As `torch.distributed.all_reduce` does with every complex tensor."""
    given = BROUGHT["complex numbers"]
    own = {group: given[group.rank()].clone() for group in groups}
    assert outcomes(groups, lambda group: group.allreduce([torch.view_as_real(own[group])])) == [None, None]
    assert all(torch.equal(total.to_dense(), given[0].to_dense() + given[1].to_dense()) for total in own.values())


@pytest.mark.parametrize(("dtype", "small"), [(torch.float16, 2.0**-11), (torch.bfloat16, 2.0**-8)], ids=str)
def test_a_sum_of_half_precision_is_rounded_once(dtype: torch.dtype, small: float) -> None:
    """One and half a last place are one, if rounded; one and twice as much are not."""
    store = HashStore()

    def one_rank(rank: int) -> Tensor:
        group = form(store, rank=rank, size=3)
        brought = rows([2], [small if rank else 1.0], dtype)
        group.allreduce([brought]).wait()
        group.shutdown()
        return brought.to_dense()

    with ThreadPoolExecutor(3) as threads:
        totals = list(threads.map(one_rank, range(3)))
    assert all(torch.equal(total, rows([2], [1 + 2 * small], dtype).to_dense()) for total in totals)


def test_many_at_a_time_with_dense_ones_between_them(groups: list[RingProcessGroup]) -> None:
    works: list[RingWork] = []
    own: dict[Any, Tensor] = {}
    for group in groups:
        for step in range(30):
            own[group, step] = rows([step % 7, group.rank()][: group.rank() + 1], [step, 1][: group.rank() + 1])
            own[group, step, "dense"] = torch.full((5,), step + group.rank() + 1.0)
            works.append(group.allreduce([own[group, step]]))
            works.append(group.allreduce([own[group, step, "dense"]]))
    for work in works:
        work.wait()
    for group in groups:
        for step in range(30):
            expected = rows([step % 7], [2 * step]).to_dense() + rows([1], [1]).to_dense()
            assert torch.equal(own[group, step].to_dense(), expected)
            assert own[group, step, "dense"].tolist() == [2 * step + 3.0] * 5


DISAGREEMENTS: dict[str, tuple[tuple[Tensor, Any], tuple[Tensor, Any]]] = {
    "shape": ((rows([1], [1]), None), (torch.ones(7, 4).to_sparse(1), None)),
    "dtype": ((rows([1], [1]), None), (rows([1], [1], torch.float64), None)),
    "sparse dimensions": ((rows([1], [1]), None), (torch.ones(SHAPE).to_sparse(), None)),
    "reduction": ((rows([1], [1]), None), (rows([1], [1]), dist.ReduceOp.AVG)),
    "layout": ((rows([1], [1]), None), (torch.ones(SHAPE), None)),
}


@pytest.mark.parametrize("name", DISAGREEMENTS)
def test_ranks_that_disagree_all_get_an_error_and_keep_their_tensors(groups: list[RingProcessGroup], name: str) -> None:
    given = DISAGREEMENTS[name]
    own = {group: given[group.rank()][0].clone() for group in groups}
    errors = outcomes(groups, lambda group: group.allreduce([own[group]], given[group.rank()][1]))
    assert [type(error) for error in errors] == [ringwide.CollectiveMismatch] * 2
    for group in groups:
        assert torch.equal(own[group].to_dense(), given[group.rank()][0].to_dense())
    require_right_sums(groups)
    test_a_mean_is_a_sum_divided_by_the_size(groups)


REFUSED: dict[str, tuple[list[Tensor], Any, str]] = {
    "by a maximum": ([rows([1], [1])], dist.ReduceOp.MAX, "reduces sparse tensors of numbers by SUM"),
    "of integers by a mean": ([rows([1], [1], torch.int64)], dist.ReduceOp.AVG, "reduces sparse tensors of numbers"),
    "of booleans by a mean": ([rows([1], [1], torch.bool)], dist.ReduceOp.AVG, "reduces sparse tensors of numbers"),
    "together with a dense one": ([rows([1], [1]), torch.ones(2)], None, "2 tensors, and a sparse one among them"),
    "of a dtype that nobody sums": ([rows([1], [1]).to(torch.float8_e4m3fn)], None, "cannot take the sum"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_one_that_cannot_begin_uses_up_its_number(groups: list[RingProcessGroup], name: str) -> None:
    tensors, op, text = REFUSED[name]
    own, others = outcomes(
        groups, lambda group: group.allreduce(tensors, op), lambda group: group.allreduce([rows([1], [1])])
    )
    assert text in str(own)
    assert isinstance(others, ringwide.CollectiveAborted)
    require_right_sums(groups)
