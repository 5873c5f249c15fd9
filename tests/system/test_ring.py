"""The ring between real processes."""

import signal

import pytest

from system import acts, checks
from system.fleet import Fleet

pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]

MIB = 1024 * 1024
CONFIGS = [
    {},
    {"algorithm": "ring", "lanes": 3, "segment_bytes": "64KiB"},
    {"algorithm": "tree", "lanes": 3, "segment_bytes": "64KiB"},
    {"algorithm": "ring", "half_precision": "native"},
    {"algorithm": "tree", "half_precision": "native"},
]


@pytest.mark.parametrize("size", [2, 3, 8])
def test_every_dtype_operation_and_algorithm_gives_the_numbers_of_the_reference(size: int) -> None:
    configs = CONFIGS if size < 8 else CONFIGS[:4]  # eight processes take their time
    with Fleet(checks.check_everything, size=size, rings=len(configs), configs=configs) as fleet:
        results = fleet.results(seconds=300)
    assert [result["wrong"] for result in results] == [[]] * size
    assert all(result["checked"] > 100 * len(configs) for result in results)
    assert len({result["digest"] for result in results}) == 1, "the same bits on every rank"


@pytest.mark.parametrize(("size", "victim"), [(2, 0), (3, 1), (5, 4)])
def test_a_rank_that_is_killed_in_the_middle_is_named_by_every_other(size: int, victim: int) -> None:
    with Fleet(acts.lose_a_rank, size=size, victim=victim, megabytes=64) as fleet:
        outcomes = fleet.outcomes(seconds=300)
    assert outcomes[victim].exit_code == -signal.SIGKILL
    for outcome in outcomes:
        if outcome.rank != victim:
            assert outcome.exit_code == 0, outcome.complaints
            assert outcome.result == {"kind": "PeerLost", "lost": victim, "intact": True}


def test_memory_is_one_more_bucket_and_stays_flat() -> None:
    megabytes = 32
    with Fleet(acts.watch_memory, size=2, megabytes=megabytes, calls=100) as fleet:
        for memory in fleet.results(seconds=300):
            assert memory["peak"] - memory["before"] <= (megabytes + 64) * MIB
            assert memory["last"] - memory["warm"] <= 8 * MIB
