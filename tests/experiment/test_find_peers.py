"""Search for peers before there is a ring, and the one report of nodes that were started together."""

import asyncio
import io
import threading
from pathlib import Path
from typing import Any

import pytest

from bootstrap.in_memory_store import MemoryStore
from experiment.in_process import experiment
from ringwide.bootstrap.launcher_env import AssignedRank
from ringwide.bootstrap.peers import Address
from ringwide.bootstrap.rendezvous import this_machine
from ringwide.config.ring_config import RingConfig
from ringwide.errors import ConfigError, JoinError
from ringwide.experiment import find_peers
from ringwide.experiment.find_peers import (
    FoundPeers,
    ListedPeers,
    PeersAtStore,
    find_at_store,
    in_daemon_thread,
    peer_finder_for,
)
from ringwide.experiment.stop_signals import NodeStop
from ringwide.experiment.worker import Worker, run_alone, run_quietly

PATIENCE_SECONDS = 60


def assigned(rank: int, size: int = 2, **more: Any) -> AssignedRank:
    return AssignedRank(rank, size, "torchrun", ("RANK", "WORLD_SIZE"), master=Address("127.0.0.1", 29500), **more)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    """One that all ranks of this process reach."""
    shared = MemoryStore()

    class Below:
        def __init__(self, prefix: str) -> None:
            self._prefix = f"{prefix}/"

        def set(self, key: str, value: str) -> None:
            shared.set(self._prefix + key, value)

        def get(self, key: str) -> bytes:
            return shared.get(self._prefix + key)

        def check(self, keys: list[str]) -> bool:
            return shared.check([self._prefix + key for key in keys])

    monkeypatch.setattr(find_peers, "open_store", lambda *_: shared)
    monkeypatch.setattr(find_peers, "below", lambda _, prefix: Below(prefix))
    return shared


async def both_find(finders: list[PeersAtStore], config: RingConfig | None = None) -> list[FoundPeers]:
    config = config or RingConfig(start_timeout_seconds=PATIENCE_SECONDS)
    async with asyncio.timeout(PATIENCE_SECONDS):
        found = await asyncio.gather(finders[0].find(config, "a run"), finders[1].find(config, None))
    for one in found:
        assert one.listener is not None
        one.listener.close()
    return found


async def test_each_ring_and_each_attempt_has_addresses_of_its_own(store: MemoryStore) -> None:
    finders = [PeersAtStore(assigned(rank)) for rank in range(2)]
    first, again = await both_find(finders), await both_find(finders)
    later = await both_find([PeersAtStore(assigned(rank, attempt=1)) for rank in range(2)])
    assert [found.run for found in (*first, *again, *later)] == ["a run"] * 6
    for found in (first, again, later):
        assert found[0].peers == found[1].peers
    rings = {key.rpartition("/ringwide/")[0] for key in store.values}
    assert rings == {"ringwide/node/0/0", "ringwide/node/0/1", "ringwide/node/1/0"}


async def test_the_store_stays_as_long_as_what_was_found_there(store: MemoryStore) -> None:
    """Once only the finder held the store, and it ended while peers still read in it."""
    found = await both_find([PeersAtStore(assigned(rank)) for rank in range(2)])
    assert [one.store for one in found] == [store, store]


@pytest.mark.parametrize("name", ["../../etc", "/etc", "..", "", "a\nb", "x" * 400, "."])
def test_a_name_from_the_store_that_is_a_path_is_refused(name: str) -> None:
    store = MemoryStore()
    store.values |= {"ringwide/machine/0": this_machine().encode(), "ringwide/address/0": b"127.0.0.1:5000"}
    store.set("ringwide/run/0", name)
    with pytest.raises(JoinError, match=r"in the store|the store says"):
        find_at_store(store, assigned(1), protected=False, seconds=PATIENCE_SECONDS, run=None)


async def test_one_that_is_alone_asks_no_store() -> None:
    found = await PeersAtStore(assigned(0, size=1)).find(RingConfig(), "a run")
    assert found.listener is not None
    assert found.peers == [f"127.0.0.1:{found.listener.getsockname()[1]}"]
    found.listener.close()


async def test_an_address_to_listen_on_belongs_to_a_peers_file() -> None:
    with pytest.raises(ConfigError, match=r"listen: 127\.0\.0\.1:5000: without a peers file .* RINGWIDE_HOST"):
        await PeersAtStore(assigned(0)).find(RingConfig(listen="127.0.0.1:5000"), "a run")


def test_peers_and_size_must_agree(tmp_path: Path) -> None:
    path = tmp_path / "peers.txt"
    path.write_text("127.0.0.1:5000\n127.0.0.1:5001\n")
    with pytest.raises(ConfigError, match=r"WORLD_SIZE is 4, but .*peers\.txt names 2 peers; make them equal"):
        peer_finder_for(AssignedRank(0, 4, "torchrun", ("RANK", "WORLD_SIZE"), peers=str(path)))
    assert isinstance(
        peer_finder_for(AssignedRank(0, 2, "torchrun", ("RANK", "WORLD_SIZE"), peers=str(path))), ListedPeers
    )


# An experiment


async def test_nodes_that_were_started_together_leave_one_report(store: MemoryStore, tmp_path: Path) -> None:
    variants = experiment(tmp_path, nodes=2, sweep={"ring.lanes": [1, 2]}, checkpoint={"every_steps": 3})
    workers = [Worker(rank, PeersAtStore(assigned(rank)), tmp_path / "e.yaml", NodeStop()) for rank in range(2)]
    assert [worker.reports for worker in workers] == [True, False]
    said = io.StringIO()
    async with asyncio.timeout(PATIENCE_SECONDS):
        codes = await asyncio.gather(run_alone(workers[0], variants, said), run_quietly(workers[1], variants))
    assert codes == [0, 0]
    runs = sorted((tmp_path / "runs").iterdir())
    assert said.getvalue().count("all nodes hold the same parameters") == len(runs) == 2
    for run in runs:
        assert (run / "results.json").exists()
        assert {path.name for path in (run / "checkpoints").iterdir()} == {
            "step-000000003.pt",
            "step-000000003.rank-0.pt",
            "step-000000003.rank-1.pt",
        }


async def test_an_experiment_of_another_size_is_refused_on_all_ranks(store: MemoryStore, tmp_path: Path) -> None:
    variants = experiment(tmp_path, nodes=3)
    workers = [Worker(rank, PeersAtStore(assigned(rank)), tmp_path / "e.yaml", NodeStop()) for rank in range(2)]
    for run in (run_alone(workers[0], variants, io.StringIO()), run_quietly(workers[1], variants)):
        with pytest.raises(ConfigError, match=r"nodes: 3: but WORLD_SIZE is 2; make them equal, as with --set nodes=2"):
            await run
    assert store.values == {}


# Waiting in_daemon_thread


async def test_what_is_done_aside_returns_or_raises() -> None:
    assert await in_daemon_thread(lambda: 5) == 5
    with pytest.raises(ZeroDivisionError):
        await in_daemon_thread(lambda: 1 // 0)


async def test_nobody_waits_for_what_is_done_aside_and_no_longer_wanted() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        go_on.wait(PATIENCE_SECONDS)

    task = asyncio.create_task(in_daemon_thread(wait))
    await asyncio.to_thread(begun.wait, PATIENCE_SECONDS)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    go_on.set()
