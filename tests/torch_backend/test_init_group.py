"""Formation of groups through a store: ranks are threads here, and have a store in memory."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed import HashStore

import ringwide
from ringwide.torch.init_group import _settings, form


def formed_and_left(store: HashStore) -> list[float]:
    """The sum that each of two ranks gets of what they bring."""

    def one_rank(rank: int) -> float:
        group = form(store, rank=rank, size=2)
        brought = torch.tensor([rank + 1.0])
        group.allreduce([brought]).wait()
        group.shutdown()
        return brought.item()

    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(one_rank, range(2)))


def test_a_group_that_is_made_again_does_not_look_for_the_first_one() -> None:
    store = HashStore()
    assert formed_and_left(store) == [3.0, 3.0]
    with pytest.raises(ringwide.StartTimeout, match=r"rank 1 \(not in the store\)"):
        form(store, rank=0, size=2, config=ringwide.RingConfig(start_timeout_seconds=0.1))


def test_a_group_can_be_made_again_and_again() -> None:
    """Also if one rank's settings were wrong the last time, and the other has waited for it in vain."""
    store = HashStore()
    with pytest.raises(ringwide.ConfigError, match="pg_options is a dict"):
        form(store, rank=0, size=2, config={})
    with pytest.raises(ringwide.StartTimeout):
        form(store, rank=1, size=2, config=ringwide.RingConfig(start_timeout_seconds=0.1))
    assert [formed_and_left(store) for _ in range(3)] == [[3.0, 3.0]] * 3


@pytest.mark.parametrize(
    ("ours", "torchs", "deadline"),
    [
        ({}, dist.default_pg_timeout, 1800),
        ({"lanes": 2}, timedelta(seconds=7), 7),
        ({"collective_timeout_seconds": 40}, dist.default_pg_timeout, 40),
        ({"collective_timeout_seconds": 40}, timedelta(seconds=7), 7),
    ],
)
def test_the_deadline_is_the_one_that_somebody_has_chosen(
    ours: dict[str, float], torchs: timedelta, deadline: float
) -> None:
    """A script in which all wait at a barrier for ten minutes works with every backend."""
    assert _settings(ringwide.RingConfig(**ours), torchs).collective_timeout_seconds == deadline  # type: ignore[arg-type]
