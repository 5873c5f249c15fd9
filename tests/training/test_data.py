import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ringwide.errors import ConfigError
from ringwide.training.data import digits, shares, steps_per_epoch

counts = st.integers(min_value=1, max_value=300)
sizes = st.integers(min_value=1, max_value=9)


def epoch_of(samples: int, batch_size: int, size: int, *, seed: int = 3, epoch: int = 0) -> list[list[list[int]]]:
    """Indexes by rank and step."""
    return [
        [
            share.indexes.tolist()
            for share in shares(samples, batch_size=batch_size, rank=rank, size=size, seed=seed, epoch=epoch)
        ]
        for rank in range(size)
    ]


@given(samples=counts, batch_size=st.integers(1, 20), size=sizes)
def test_an_epoch_gives_every_sample_to_exactly_one_rank(samples: int, batch_size: int, size: int) -> None:
    seen = [index for rank in epoch_of(samples, batch_size, size) for share in rank for index in share]
    assert sorted(seen) == list(range(samples))


@given(samples=counts, batch_size=st.integers(1, 20), size=sizes)
def test_all_ranks_make_the_same_steps_with_nearly_equal_shares(samples: int, batch_size: int, size: int) -> None:
    by_rank = epoch_of(samples, batch_size, size)
    assert {len(rank) for rank in by_rank} == {steps_per_epoch(samples, batch_size, size)}
    for step in zip(*by_rank, strict=True):
        lengths = [len(share) for share in step]
        assert max(lengths) - min(lengths) <= 1
        assert max(lengths) <= batch_size


@given(samples=counts, batch_size=st.integers(1, 20), size=sizes)
def test_a_share_knows_its_whole_batch(samples: int, batch_size: int, size: int) -> None:
    every = [list(shares(samples, batch_size=batch_size, rank=r, size=size, seed=0, epoch=0)) for r in range(size)]
    for step in zip(*every, strict=True):
        assert {share.batch_total for share in step} == {sum(len(share.indexes) for share in step)}


def test_the_order_depends_on_seed_and_epoch_alone() -> None:
    first = epoch_of(100, 5, 2)
    assert first == epoch_of(100, 5, 2)
    assert first != epoch_of(100, 5, 2, epoch=1)
    assert first != epoch_of(100, 5, 2, seed=4)


def test_digits_are_scaled_and_the_test_samples_are_held_out() -> None:
    data = digits()
    assert (data.inputs, data.classes) == (64, 10)
    assert (len(data.train), len(data.test)) == (1438, 359)
    assert float(data.train.features.min()) == 0.0
    assert float(data.train.features.max()) == 1.0
    assert data.train.features.dtype == torch.float32
    # Together they are the whole set: a sample in both would be counted twice.
    assert int(torch.cat([data.train.labels, data.test.labels]).bincount().sum()) == 1797
    rows = {tuple(row) for row in torch.cat([data.train.features, data.test.features]).tolist()}
    assert len(rows) == 1797


def test_without_scikit_learn_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ConfigError, match=r"pip install 'ringwide\[experiments\]'"):
        digits()
