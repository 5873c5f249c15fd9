import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from ringwide.training.optimizers import FlatBucket, flatten

SMALLEST = 1024


class Made(nn.Module):
    """Parameters of any shapes and types, in the order they are given in."""

    def __init__(self, *parameters: nn.Parameter) -> None:
        super().__init__()
        self.parts = nn.ParameterList(parameters)


def counted(*shape: int, dtype: torch.dtype = torch.float32, learnt: bool = True) -> nn.Parameter:
    count = torch.Size(shape).numel()
    return nn.Parameter(torch.arange(count, dtype=dtype).view(shape), requires_grad=learnt)


def is_view_of(whole: Tensor, part: Tensor) -> bool:
    start = part.data_ptr() - whole.data_ptr()
    return not part.nbytes or 0 <= start <= whole.nbytes - part.nbytes


def all_are_views(buckets: list[FlatBucket]) -> bool:
    return all(
        is_view_of(bucket.parameters, member) and is_view_of(bucket.gradients, member.grad)
        for bucket in buckets
        for member in bucket.members
    )


shapes = st.lists(st.integers(0, 9), max_size=3).map(tuple)
dtypes = st.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16])
parameters = st.lists(st.tuples(shapes, dtypes, st.booleans()), max_size=8)


@settings(max_examples=40)
@given(parameters, st.sampled_from([1, 100, 10**6]))
def test_values_types_and_shapes_stay_what_is_learnt_moves(
    given: list[tuple[tuple[int, ...], torch.dtype, bool]], bucket_bytes: int
) -> None:
    model = Made(*(counted(*shape, dtype=dtype, learnt=learnt) for shape, dtype, learnt in given))
    before = [(parameter, parameter.detach().clone(), parameter.data_ptr()) for parameter in model.parameters()]
    buckets = flatten(model, bucket_bytes)
    assert all_are_views(buckets)
    for parameter, value, _ in before:
        assert parameter.dtype == value.dtype
        assert torch.equal(parameter, value)
    members = [member for bucket in buckets for member in bucket.members]
    assert [id(member) for member in members] == [id(p) for p, _, _ in reversed(before) if p.requires_grad]
    assert all(parameter.data_ptr() == place for parameter, _, place in before if not parameter.requires_grad)
    for bucket in buckets:
        assert {member.dtype for member in bucket.members} == {bucket.parameters.dtype} == {bucket.gradients.dtype}
        assert bucket.parameters.numel() == sum(member.numel() for member in bucket.members)
        assert bucket.nbytes <= bucket_bytes or len(bucket.members) == 1
        assert not bucket.gradients.any()


def test_no_bucket_is_left_half_empty() -> None:
    buckets = flatten(Made(*(counted(100) for _ in range(6))), bucket_bytes=800)
    assert [len(bucket.members) for bucket in buckets] == [2, 2, 2]
    assert [bucket.name for bucket in buckets] == ["gradients 0", "gradients 1", "gradients 2"]


def test_views_stay_views_after_a_backward_pass_and_a_step() -> None:
    model = nn.Sequential(nn.Conv2d(1, 3, 2).to(memory_format=torch.channels_last), nn.Flatten(), nn.Linear(27, 2))
    buckets = flatten(model, SMALLEST)
    for _ in range(2):
        model(torch.ones(5, 1, 4, 4)).sum().backward()
        assert all_are_views(buckets)
        assert all(bucket.gradients.any() for bucket in buckets)
        before = [parameter.detach().clone() for parameter in model.parameters()]
        for bucket in buckets:
            bucket.parameters.sub_(bucket.gradients)
        for parameter, old in zip(model.parameters(), before, strict=True):
            torch.testing.assert_close(parameter.detach(), old - parameter.grad)
        assert all_are_views(buckets)


def test_a_parameter_that_is_used_twice_travels_once_and_gathers_both_gradients() -> None:
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    model[1].weight = model[0].weight
    (bucket,) = flatten(model, SMALLEST)
    assert len(bucket.members) == 1
    assert model[0].weight is model[1].weight
    weight = model[0].weight.detach().clone().requires_grad_()
    model(torch.ones(1, 3)).sum().backward()
    (torch.ones(1, 3) @ weight.T @ weight.T).sum().backward()
    torch.testing.assert_close(bucket.gradients.view(3, 3), weight.grad)


def test_a_recurrent_layer_still_computes_with_its_own_parameters() -> None:
    layer, inputs = nn.LSTM(3, 4, num_layers=2), torch.ones(5, 1, 3)
    before = layer(inputs)[0]
    buckets = flatten(layer, SMALLEST)
    assert torch.equal(layer(inputs)[0], before)
    for bucket in buckets:
        bucket.parameters.zero_()
    assert not layer(inputs)[0].any()


@pytest.mark.parametrize("bucket_bytes", [1, SMALLEST])
def test_what_the_model_computes_is_the_same_as_before(bucket_bytes: int) -> None:
    model = nn.Sequential(nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, 2))
    inputs = torch.linspace(-1, 1, 21).view(3, 7)
    model(inputs).sum().backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    flatten(model, bucket_bytes)
    model(inputs).sum().backward()
    for parameter, gradient in itertools.zip_longest(model.parameters(), gradients):
        assert torch.equal(parameter.grad, gradient)
