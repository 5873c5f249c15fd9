import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringwide.training.samples import SampleShare, shares, steps_per_epoch

counts = st.integers(min_value=1, max_value=300)
sizes = st.integers(min_value=1, max_value=9)
batch_sizes = st.integers(min_value=1, max_value=20)
accumulations = st.integers(min_value=1, max_value=4)


def epoch_of(
    samples: int, batch_size: int, size: int, accumulate: int = 1, *, seed: int = 3, epoch: int = 0
) -> list[list[SampleShare]]:
    """Shares by rank and step."""
    return [
        list(
            shares(
                samples,
                batch_size=batch_size,
                accumulate_batches=accumulate,
                rank=rank,
                size=size,
                seed=seed,
                epoch=epoch,
            )
        )
        for rank in range(size)
    ]


def indexes(share: SampleShare) -> list[int]:
    return [index for batch in share.batches for index in batch.tolist()]


@given(samples=counts, batch_size=batch_sizes, size=sizes, accumulate=accumulations)
def test_an_epoch_gives_every_sample_to_exactly_one_rank(
    samples: int, batch_size: int, size: int, accumulate: int
) -> None:
    by_rank = epoch_of(samples, batch_size, size, accumulate)
    seen = [index for rank in by_rank for share in rank for index in indexes(share)]
    assert sorted(seen) == list(range(samples))


@given(samples=counts, batch_size=batch_sizes, size=sizes, accumulate=accumulations)
def test_all_ranks_make_the_same_steps_with_nearly_equal_shares(
    samples: int, batch_size: int, size: int, accumulate: int
) -> None:
    by_rank = epoch_of(samples, batch_size, size, accumulate)
    steps = steps_per_epoch(samples, batch_size=batch_size, accumulate_batches=accumulate, size=size)
    assert {len(rank) for rank in by_rank} == {steps}
    for step in zip(*by_rank, strict=True):
        lengths = [share.samples for share in step]
        assert max(lengths) - min(lengths) <= 1
        assert {share.total for share in step} == {sum(lengths)}


@given(samples=counts, batch_size=batch_sizes, size=sizes, accumulate=accumulations)
def test_a_share_is_cut_into_batches_of_which_only_an_only_one_is_empty(
    samples: int, batch_size: int, size: int, accumulate: int
) -> None:
    for share in (share for rank in epoch_of(samples, batch_size, size, accumulate) for share in rank):
        lengths = [len(batch) for batch in share.batches]
        assert sum(lengths) == share.samples
        assert 1 <= len(lengths) <= accumulate
        assert max(lengths) <= batch_size
        assert lengths == [0] or min(lengths) > 0


@given(samples=counts, batch_size=batch_sizes, size=sizes, accumulate=accumulations)
def test_ranks_and_accumulated_batches_together_take_what_one_large_batch_takes(
    samples: int, batch_size: int, size: int, accumulate: int
) -> None:
    (alone,) = epoch_of(samples, batch_size * size * accumulate, 1)
    by_rank = epoch_of(samples, batch_size, size, accumulate)
    for whole, step in zip(alone, zip(*by_rank, strict=True), strict=True):
        assert indexes(whole) == [index for share in step for index in indexes(share)]


@pytest.mark.parametrize("first", [0, 1, 4, 6, 7])
def test_an_epoch_can_be_taken_up_in_its_middle(first: int) -> None:
    how = {"batch_size": 5, "accumulate_batches": 2, "rank": 1, "size": 2, "seed": 3, "epoch": 2}
    whole, rest = list(shares(123, **how)), list(shares(123, **how, first=first))
    assert len(whole) == 7
    assert [indexes(share) for share in rest] == [indexes(share) for share in whole[first:]]


def test_the_order_depends_on_seed_and_epoch_alone() -> None:
    def order(**chance: int) -> list[list[int]]:
        return [indexes(share) for rank in epoch_of(100, 5, 2, **chance) for share in rank]

    assert order() == order()
    assert order() != order(epoch=1)
    assert order() != order(seed=4)
    assert order(seed=1, epoch=2) != order(seed=2, epoch=1)
