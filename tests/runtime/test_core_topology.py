from functools import reduce

import numpy as np
import pytest

from ringwide.runtime.core import Topology, notes

KIB = 1024
Seen = tuple[bool, bool, set[int]]
"""What one rank sees: one host, by memory, its cores."""


def together(*seen: Seen) -> Topology:
    noted = [notes(one_host=one_host, by_memory=by_memory, cores=cores) for one_host, by_memory, cores in seen]
    return Topology.of(reduce(np.bitwise_or, noted), len(seen))


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_cores_count_together(ranks: int) -> None:
    """Ranks pinned to one core each do not take turns."""
    assert not together(*[(True, True, {rank}) for rank in range(ranks)]).crowded
    assert together(*[(True, True, {0})] * ranks).crowded == (ranks > 1)


def test_one_rank_that_sees_another_host_is_enough() -> None:
    assert together((True, True, {0}), (False, True, {0}), (True, True, {0})) == (False, True, False)


def test_one_rank_without_shared_memory_is_enough() -> None:
    assert together((True, True, {0}), (True, False, {0})) == (True, False, True)


@pytest.mark.parametrize(
    ("where", "tree_bytes", "express_bytes"),
    [
        (Topology(False, False, False), 64 * KIB, 256 * KIB),
        (Topology(True, False, False), 256 * KIB, 256 * KIB),
        (Topology(True, False, True), 256 * KIB, 256 * KIB),
        (Topology(True, True, False), 512 * KIB, 1024 * KIB),
        (Topology(True, True, True), 1024 * KIB, 1024 * KIB),
    ],
)
def test_what_follows(where: Topology, tree_bytes: int, express_bytes: int) -> None:
    assert (where.tree_bytes, where.express_bytes) == (tree_bytes, express_bytes)
