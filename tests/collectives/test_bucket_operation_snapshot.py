"""What was replaced comes back, all of it and nothing else."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ringwide.collectives.bucket_operation import Snapshot
from ringwide.protocol.ring import Layout


@given(
    count=st.integers(0, 200),
    chunks=st.integers(1, 5),
    replaced=st.lists(st.integers(0, 10_000), max_size=20),
)
def test_whatever_was_replaced_comes_back(count: int, chunks: int, replaced: list[int]) -> None:
    layout = Layout(count, 4, chunks, 40)
    given_numbers = np.arange(count, dtype=np.float32)
    ours = given_numbers.copy()
    snapshot = Snapshot(ours, np.full(count, -1, np.float32), layout.bounds)
    for turn, number in enumerate(replaced):  # some more than once: only what was there first counts
        segment = number % layout.segments
        snapshot.save(segment)
        ours[slice(*layout.bounds[segment])] = 1000 + turn
    snapshot.put_back()
    assert np.array_equal(ours, given_numbers)


def test_what_was_not_replaced_is_not_touched() -> None:
    ours = np.zeros(8, np.float32)
    snapshot = Snapshot(ours, np.empty(8, np.float32), Layout(8, 4, 2, 16).bounds)
    snapshot.save(0)
    ours[:] = 7  # the second half by somebody else
    snapshot.put_back()
    assert ours.tolist() == [0, 0, 0, 0, 7, 7, 7, 7]


def test_it_is_put_back_once() -> None:
    ours = np.zeros(4, np.float32)
    snapshot = Snapshot(ours, np.empty(4, np.float32), Layout(4, 4, 1, 16).bounds)
    snapshot.save(0)
    snapshot.put_back()
    ours[:] = 5  # the caller goes on
    snapshot.put_back()
    assert ours.tolist() == [5, 5, 5, 5]


def test_where_nobody_wants_it_back_nothing_is_saved() -> None:
    ours = np.zeros(4, np.float32)
    snapshot = Snapshot(ours, None, Layout(4, 4, 1, 16).bounds)
    snapshot.save(0)
    ours[:] = 5
    snapshot.put_back()
    assert ours.tolist() == [5, 5, 5, 5]
