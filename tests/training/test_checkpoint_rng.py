import random
from pathlib import Path

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ringwide.training.checkpoint import restore_rng, rng_state, seed_rng


@pytest.fixture(autouse=True)
def _nobody_else_is_disturbed() -> None:
    before = rng_state()
    yield
    restore_rng(before)


def drawn() -> list[float]:
    """One of each kind, and both halves of those that are made in pairs."""
    return [
        random.random(),
        random.gauss(0, 1),
        float(numpy.random.rand()),
        float(numpy.random.randn()),
        float(torch.rand(())),
        float(torch.randn(())),
    ]


def test_the_same_seed_gives_the_same_numbers_and_another_rank_others() -> None:
    def first(*numbers: int) -> list[float]:
        seed_rng(*numbers)
        return drawn()

    assert first(3, 1) == first(3, 1)
    others = [first(*numbers) for numbers in [(3, 0), (3, 1), (4, 0), (1, 3)]]
    for kind in zip(*others, strict=True):
        assert len(set(kind)) == len(others)


@given(st.integers(0, 5))
def test_they_go_on_as_if_nothing_had_been_saved(count: int) -> None:
    seed_rng(7)
    for _ in range(count):
        drawn()
    kept = rng_state()
    expected = [drawn() for _ in range(3)]
    restore_rng(kept)
    assert [drawn() for _ in range(3)] == expected


def test_the_state_can_be_loaded_without_trusting_the_file(tmp_path: Path) -> None:
    drawn()
    torch.save(rng_state(), tmp_path / "state.pt")
    expected = drawn()
    restore_rng(torch.load(tmp_path / "state.pt", weights_only=True))
    assert drawn() == expected
