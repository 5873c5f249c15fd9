"""Translation of torch's operations and dtypes for the ring, and writing of results into the caller's tensors."""

import pytest
import torch
from torch.distributed import ReduceOp

from ringwide.torch.dtype_views import operation_on, require_outputs, write

TRUTHS, FLOATS, INTEGERS = torch.tensor([True]), torch.ones(2), torch.ones(2, dtype=torch.int64)


def test_truths_and_numbers_are_not_summed_together() -> None:
    """By one word for both the numbers would be wrong: of truths the largest is asked for, of numbers the sum."""
    for together in ([TRUTHS, FLOATS], [FLOATS, TRUTHS]):
        with pytest.raises(TypeError, match=r"torch\.(bool|float32) and torch\.(bool|float32) together"):
            operation_on(together, ReduceOp.SUM)
    with pytest.raises(TypeError, match="together by"):
        operation_on([INTEGERS, FLOATS], ReduceOp.AVG)


def test_what_means_the_same_is_one_operation() -> None:
    assert operation_on([TRUTHS, TRUTHS], ReduceOp.SUM) == "max"
    assert operation_on([FLOATS, INTEGERS], ReduceOp.SUM) == "sum"
    assert operation_on([TRUTHS, FLOATS], ReduceOp.MAX) == "max"


def test_places_that_cannot_be_written_are_found_before_any_is() -> None:
    good = torch.zeros(4)
    with pytest.raises(TypeError, match=r"all_gather: output 1 is of torch\.int64"):
        require_outputs([good, torch.zeros(4, dtype=torch.int64)], torch.float32, "all_gather")
    with pytest.raises(ValueError, match=r"output 1.*share memory"):
        require_outputs([good, torch.zeros(1).expand(4)], torch.float32, "all_gather")


def test_a_tensor_is_written_whatever_mode_it_was_made_in() -> None:
    with torch.inference_mode():
        evaluated = torch.zeros(2, 2)
    parameter = torch.zeros(2, 2, requires_grad=True)
    for target in (evaluated, parameter):
        write(target, torch.arange(4.0))
        assert target.tolist() == [[0, 1], [2, 3]]
    assert parameter.is_leaf
