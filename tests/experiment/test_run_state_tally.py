import math

import pytest

from experiment.told import progress, step, steps
from ringwide.experiment.run_state import RECENT_SECONDS, RankTally


def test_the_recent_pace_is_that_of_the_last_seconds() -> None:
    tally = RankTally(batch_size=16)
    tally.add(progress(*(step(number, seconds=float(number), loss=9.0) for number in range(1, 101)), sent=0))
    for number in range(1, 5):
        tally.add(progress(*(step(seconds=100 + number / 2, loss=0.25) for _ in range(10)), sent=number * 1000))
    recent = tally.recent()
    assert (recent.seconds, recent.batches) == (RECENT_SECONDS, 40)
    assert (recent.batches_per_second, recent.throughput) == (20.0, 2000.0)
    assert recent.mean_loss == 0.25
    assert tally.sums.batches == 140


def test_before_the_first_seconds_are_over_the_pace_is_that_of_all() -> None:
    tally = RankTally(batch_size=16)
    tally.add(steps([1, 2], network_seconds=0.25, hidden_seconds=0.125))
    recent = tally.recent()
    assert (recent.batches_per_second, recent.network_share, recent.hidden_share) == (2.0, 0.5, 0.5)


def test_nothing_told_is_no_pace() -> None:
    tally = RankTally(batch_size=16)
    tally.add(progress(sent=5))
    assert tally.last is None
    assert tally.recent().batches_per_second == 0
    assert math.isnan(tally.recent().mean_loss)


@pytest.mark.parametrize(("samples", "batches"), [(0, 1), (1, 1), (16, 1), (17, 2), (64, 4)])
def test_accumulated_batches_are_counted_one_by_one(samples: int, batches: int) -> None:
    tally = RankTally(batch_size=16)
    tally.add(progress(step(samples=samples)))
    assert tally.sums.batches == batches


def test_an_empty_share_does_not_spoil_the_loss() -> None:
    tally = RankTally(batch_size=16)
    tally.add(progress(step(1, loss=0.5), step(2, samples=0, loss=math.nan)))
    assert tally.recent().mean_loss == 0.5
