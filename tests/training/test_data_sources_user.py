from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

from ringwide.errors import ConfigError
from ringwide.training import data_sources
from ringwide.training.data_sources import clusters, load_user_data
from ringwide.training.samples import Data, TensorSamples


class Squares:
    """A dataset that knows its length but would be iterated over without end."""

    def __init__(self, length: int, item: Callable[[int], Any] = lambda i: (torch.full((2,), float(i)), i % 3)) -> None:
        self.length, self.item = length, item

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.item(index)


def loaded(returned: Any, monkeypatch: pytest.MonkeyPatch) -> Data:
    monkeypatch.setattr(data_sources, "call", lambda path, key, options: returned)
    return load_user_data("mine:data", {})


def arrays(length: int, width: int = 4) -> tuple[Any, Any]:
    return numpy.ones((length, width)), numpy.arange(length) % 3


@pytest.mark.parametrize(
    ("returned", "inputs", "outputs"),
    [
        ((arrays(6), arrays(3)), (4,), 3),
        ([list(arrays(6)), list(arrays(3))], (4,), 3),
        (((torch.ones(6, 1, 8, 8), torch.arange(6)), (torch.ones(2, 1, 8, 8), torch.tensor([9, 0]))), (1, 8, 8), 10),
        (((torch.ones(6, 2), torch.ones(6, 5)), (torch.ones(1, 2), torch.ones(1, 5))), (2,), 5),
        (((torch.ones(6, 2), torch.ones(6)), (torch.ones(1, 2), torch.ones(1))), (2,), 1),
        (((torch.ones(6, 2), torch.ones(6, 5, 5)), (torch.ones(1, 2), torch.ones(1, 5, 5))), (2,), 0),
        ((Squares(6), Squares(2)), (2,), 3),
        ((Squares(6), arrays(5, 2)), (2,), 3),
        (([(1.0, 0), (2.0, 1)], [(3.0, 1)]), (), 2),
    ],
)
def test_pairs_and_datasets_become_samples(
    returned: Any, inputs: tuple[int, ...], outputs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = loaded(returned, monkeypatch)
    assert (data.inputs, data.outputs) == (inputs, outputs)
    for samples, given in zip((data.train, data.test), returned, strict=True):
        assert len(samples) == (len(given[0]) if isinstance(given[0], torch.Tensor | numpy.ndarray) else len(given))


def test_a_dataset_is_stacked_in_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    data = loaded((Squares(6), Squares(2)), monkeypatch)
    inputs, targets = data.train.batch(torch.tensor([5, 1]))
    assert (inputs.tolist(), targets.tolist()) == ([[5, 5], [1, 1]], [2, 1])


def test_numbers_of_numpy_become_what_models_expect_and_tensors_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = torch.ones(2, 4, dtype=torch.float64), torch.ones(2)
    data = loaded(((numpy.ones((2, 4)), numpy.ones(2, dtype=numpy.int32)), kept), monkeypatch)
    of_numpy, of_torch = data.train.batch(torch.arange(2)), data.test.batch(torch.arange(2))
    assert [part.dtype for part in of_numpy] == [torch.float32, torch.int64]
    assert [part.dtype for part in of_torch] == [torch.float64, torch.float32]


def test_complex_targets_stay_complex(monkeypatch: pytest.MonkeyPatch) -> None:
    targets = numpy.array([[1 + 2j, 3j], [4, 5 - 6j]])
    data = loaded(((numpy.ones((2, 4)), targets), (torch.ones(2, 4), torch.from_numpy(targets))), monkeypatch)
    (_, of_numpy), (_, of_torch) = data.train.batch(torch.arange(2)), data.test.batch(torch.arange(2))
    assert (of_numpy.dtype, of_torch.dtype) == (torch.complex64, torch.complex128)
    assert of_numpy.tolist() == of_torch.tolist() == targets.tolist()
    assert data.outputs == 2
    assert not data.train.has_target(-100)


def test_data_in_our_own_shape_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    given = clusters()
    assert loaded(given, monkeypatch) is given


@pytest.mark.parametrize(
    ("returned", "complaint"),
    [
        (None, "returned None; it should return"),
        (arrays(3)[0], r"returned an array of shape \(3, 4\)"),
        ((arrays(3), arrays(3), arrays(3)), "returned a tuple of 3"),
        (arrays(3), r"train is an array of shape \(3, 4\)"),
        (("train.csv", "test.csv"), "train is a str"),
        (({"x": 1}, {"x": 1}), "train is a dict"),
        ((arrays(3), 5), "test is an int"),
        (((torch.ones(3, 2), torch.ones(4)), arrays(3)), r"train: inputs have shape \(3, 2\) and targets \(4,\)"),
        (((torch.ones(3, 2), torch.tensor(1)), arrays(3)), r"train: inputs have shape \(3, 2\) and targets \(\)"),
        ((arrays(3), arrays(0)), "test: has no samples"),
        ((Squares(0), Squares(1)), "train: has no samples"),
        ((arrays(3), arrays(3, 5)), r"a sample has shape \(4,\) in train, but \(5,\) in test"),
        ((Squares(3, lambda i: torch.ones(2)), Squares(1)), r"train\[0\] is a tensor of shape \(2,\)"),
        (
            (Squares(3, lambda i: (torch.ones(i + 1), 0)), Squares(1)),
            r"train: has samples of different shapes: \(1,\), \(2,\)",
        ),
        ((Squares(3, lambda i: ("text", 0)), Squares(1)), "train: is not made of numbers: "),
        ((Squares(3, lambda i: 1 / 0), Squares(1)), "train: ZeroDivisionError: division by zero"),
        (((numpy.array(["a", "b"]), torch.ones(2)), arrays(3)), "train: is not made of numbers: "),
    ],
)
def test_anything_else_is_refused_by_what_it_is(returned: Any, complaint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=rf"^training.data: 'mine:data': {complaint}") as raised:
        loaded(returned, monkeypatch)
    assert "\n" not in str(raised.value)


def test_data_that_is_made_whole_must_have_samples_too(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = TensorSamples(torch.empty(0, 2), torch.empty(0))
    with pytest.raises(ConfigError, match=r"training\.data: 'mine:data': train: has no samples"):
        loaded(Data(train=nothing, test=nothing, inputs=(2,), outputs=1), monkeypatch)
