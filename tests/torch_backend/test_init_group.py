"""Formation of groups through a store: ranks are threads here, and have a store in memory."""

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, TypeVar

import pytest
import torch
import torch.distributed as dist
from torch.distributed import HashStore, PrefixStore, Store

import ringwide
from ringwide.torch.init_group import _settings, form
from ringwide.torch.process_group import RingProcessGroup

Result = TypeVar("Result")


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


def test_a_group_that_is_made_again_does_not_find_the_barriers_of_the_first_one() -> None:
    store = HashStore()

    def one_rank(rank: int, *, comes: bool) -> BaseException | None:
        group = form(store, rank=rank, size=2)
        try:
            if comes:
                group.monitored_barrier(timedelta(seconds=0.3))
        except TimeoutError as error:
            return error
        finally:
            group.shutdown()
        return None

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(lambda rank: one_rank(rank, comes=True), range(2))) == [None, None]
        _, alone = threads.map(lambda rank: one_rank(rank, comes=rank == 1), range(2))
    assert "received errors while waiting" in str(alone)


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


@pytest.mark.parametrize(
    ("ours", "torchs", "deadline"),
    [
        ({}, dist.default_pg_timeout, 1800),
        ({}, timedelta(seconds=8), 8),
        ({"start_timeout_seconds": 40}, dist.default_pg_timeout, 40),
        ({"start_timeout_seconds": 40}, timedelta(seconds=8), 8),
        ({"start_timeout_seconds": 40}, None, 40),
    ],
)
def test_others_are_waited_for_as_long_as_torch_says(
    ours: dict[str, float], torchs: timedelta | None, deadline: float
) -> None:
    assert _settings(ringwide.RingConfig(**ours), torchs).start_timeout_seconds == deadline  # type: ignore[arg-type]


def test_the_ring_has_the_name_of_the_launchers_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a rank that is left over from another run cannot join."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "d3b0")
    assert _settings(None, None).run_id == "torchrun d3b0"
    assert _settings(ringwide.RingConfig(run_id="mine"), None).run_id == "mine"


def test_a_rank_that_is_missing_is_an_error_when_the_timeout_of_the_group_is_over() -> None:
    with pytest.raises(
        ringwide.StartTimeout, match=r"rank 0 timed out: it waited 0.2 s .* rank 1 \(not in the store\)"
    ):
        form(HashStore(), rank=0, size=2, timeout=timedelta(seconds=0.2))


# -- subgroups


def on_ranks_of_a_world(size: int, act: Callable[[RingProcessGroup, Store], Result], **world: Any) -> list[Result]:
    """Results of `act` on every rank of a new world, by rank. Nobody leaves before all are through."""
    store, through = HashStore(), threading.Barrier(size)

    def one_rank(rank: int) -> Result:
        group = form(store, rank=rank, size=size, **world)
        try:
            return act(group, store)
        finally:
            through.wait(60)
            group.shutdown()

    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(one_rank, range(size)))


def subgroup(world: RingProcessGroup, store: Store, ranks: list[int], **given: Any) -> RingProcessGroup:
    name = "-".join(map(str, ranks))
    place = ranks.index(world.ring.rank)
    return form(PrefixStore(name, store), rank=place, size=len(ranks), world=world, ranks=ranks, **given)


def reduced(group: RingProcessGroup, value: float) -> float:
    tensor = torch.tensor([value])
    group.allreduce([tensor]).wait()
    return tensor.item()


def test_a_new_group_shares_the_connections_of_the_world() -> None:
    def act(world: RingProcessGroup, store: Store) -> float:
        if world.ring.rank == 1:
            return 0.0
        links = {id(link) for link in world.ring._engine.links.values()}
        group = subgroup(world, store, [2, 0])
        assert {id(link) for link in group.ring._engine.links.values()} < links
        return reduced(group, 10.0 + world.ring.rank)

    assert on_ranks_of_a_world(3, act) == [22.0, 0.0, 22.0]


@pytest.mark.parametrize("settings", [{"lanes": 2}, {"same_host": "tcp"}])
def test_a_group_that_needs_other_connections_has_its_own(settings: dict[str, Any]) -> None:
    def act(world: RingProcessGroup, store: Store) -> float:
        group = subgroup(world, store, [0, 1], config=ringwide.RingConfig(**settings))
        assert group.ring._engine.links != world.ring._engine.links
        total = reduced(group, 1.0)
        group.shutdown()
        return total

    assert on_ranks_of_a_world(2, act) == [2.0, 2.0]


def test_a_group_may_have_a_codec_of_its_own_on_shared_connections() -> None:
    def act(world: RingProcessGroup, store: Store) -> tuple[str, str]:
        config = ringwide.RingConfig(messages=True, codec="int8", allow_lossy=True)
        group = subgroup(world, store, [0, 1], config=config)
        tensor = torch.full((1_000_000,), 1.0)
        group.allreduce([tensor]).wait()
        assert torch.equal(tensor, torch.full((1_000_000,), 2.0))
        sent = {codec.codec for link in group.ring.statistics().links for codec in link.sent}
        assert sent == {"int8"}
        return group.ring.config.codec, world.ring.config.codec

    assert on_ranks_of_a_world(2, act) == [("int8", "none")] * 2


def test_ranks_that_want_different_groups_all_hear_of_it() -> None:
    def act(world: RingProcessGroup, store: Store) -> str:
        config = ringwide.RingConfig(messages=True, algorithm="tree" if world.ring.rank else "auto")
        with pytest.raises(ringwide.Disagreement) as caught:
            subgroup(world, store, [0, 1], config=config)
        return str(caught.value)

    first, second = on_ranks_of_a_world(2, act)
    assert first == "algorithm: this is rank 0 with 'auto', but rank 1 has 'tree'; start both with the same"
    assert second == "algorithm: this is rank 1 with 'tree', but rank 0 has 'auto'; start both with the same"


def test_ranks_of_which_one_needs_other_connections_all_make_them_or_say_why_not() -> None:
    def act(world: RingProcessGroup, store: Store) -> str:
        config = ringwide.RingConfig(lanes=2) if world.ring.rank else None
        with pytest.raises(ringwide.Disagreement) as caught:
            subgroup(world, store, [0, 1], config=config, timeout=timedelta(seconds=20))
        return str(caught.value)

    assert all(text.startswith("lanes: this is rank") for text in on_ranks_of_a_world(2, act))


def test_a_group_that_a_rank_never_makes_is_an_error_for_the_others_and_the_world_goes_on() -> None:
    def act(world: RingProcessGroup, store: Store) -> float:
        if world.ring.rank:
            with pytest.raises(ringwide.StartTimeout, match="rank 0"):
                subgroup(world, store, [0, 1], timeout=timedelta(seconds=0.2))
        return reduced(world, 1.0)

    assert on_ranks_of_a_world(2, act) == [2.0, 2.0]


def test_a_hundred_groups_take_no_descriptors_and_no_threads() -> None:
    counts: list[tuple[int, int]] = []

    def count() -> None:
        counts.append((len(os.listdir("/proc/self/fd")), threading.active_count()))

    everyone = threading.Barrier(3, action=count)  # one counts while all wait: to list descriptors takes one, too

    def act(world: RingProcessGroup, store: Store) -> None:
        def group_number(number: int) -> RingProcessGroup:
            group = subgroup(world, PrefixStore(str(number), store), [2, 0, 1])
            assert reduced(group, 1.0) == 3.0
            return group

        first = group_number(0)  # it may open lanes to new neighbours
        everyone.wait(60)
        groups = [first, *map(group_number, range(1, 100))]
        everyone.wait(60)
        for group in groups:
            group.shutdown()

    on_ranks_of_a_world(3, act)
    before, after = counts
    assert after[0] <= before[0], "none more; some of an earlier test may have been closed meanwhile"
    assert after[1] <= before[1]
