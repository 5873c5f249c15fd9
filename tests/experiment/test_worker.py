import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiment import told
from experiment.in_process import experiment, worker_at
from ringwide.errors import ConfigError
from ringwide.experiment.worker import _everyones, run_worker
from ringwide.training.progress import Evaluation, Progress, TrainingPlan


async def test_every_node_tells_of_itself_and_knows_of_all(tmp_path: Path) -> None:
    (variant,) = experiment(tmp_path, nodes=2)
    heard: list[list[Any]] = [[], []]
    first, second = await asyncio.gather(
        *(run_worker(worker_at(tmp_path, rank), variant.config, tmp_path, heard[rank].append) for rank in range(2))
    )
    assert first == second
    assert sorted(first) == [0, 1]
    assert first[0].fingerprint == first[1].fingerprint
    for result in first.values():
        assert result.steps == 3
        assert 0 <= result.torch_memory_bytes < result.memory_bytes < result.peak_memory_bytes
    for messages in heard:
        assert [type(message) for message in messages] == [TrainingPlan, *[Progress] * (len(messages) - 2), Evaluation]


@pytest.mark.parametrize("own", [False, True])
async def test_checkpoints_are_in_the_run_or_where_the_experiment_says(tmp_path: Path, own: bool) -> None:
    keys = {"every_steps": 2, **({"directory": str(tmp_path / "kept")} if own else {})}
    (variant,) = experiment(tmp_path, checkpoint=keys)
    await run_worker(worker_at(tmp_path), variant.config, tmp_path / "run", lambda _: None)
    found = {path.name for path in (tmp_path / "kept" if own else tmp_path / "run" / "checkpoints").iterdir()}
    assert {"step-000000002.pt", "step-000000003.pt"} < found


async def test_as_many_peers_as_nodes(tmp_path: Path) -> None:
    (variant,) = experiment(tmp_path, nodes=2)
    (tmp_path / "peers.txt").write_text("127.0.0.1:1\n")
    with pytest.raises(ConfigError, match=r"e\.yaml: nodes: 2: but .*peers\.txt names 1 peers; make them equal"):
        await run_worker(worker_at(tmp_path), variant.config, tmp_path, lambda _: None)


class Gathering:
    """A ring that gives everybody's words back to each."""

    def __init__(self, size: int) -> None:
        self._given: dict[int, list[Any]] = {}
        self._size, self._complete = size, asyncio.Condition()

    def of(self, rank: int) -> Any:
        formation, calls = self, iter(range(100))

        class Ring:
            async def all_gather(self, array: Any) -> list[Any]:
                return await formation.exchange(next(calls), rank, np.array(array))

        return Ring()

    async def exchange(self, number: int, rank: int, array: Any) -> list[Any]:
        given = self._given.setdefault(number, [None] * self._size)
        given[rank] = array
        async with self._complete:
            self._complete.notify_all()
            await self._complete.wait_for(lambda: all(each is not None for each in given))
        assert len({each.shape for each in given}) == 1  # as a ring demands
        return given


async def test_results_of_different_lengths_arrive_whole() -> None:
    results = [told.result(), told.result(loss=1 / 3, fingerprint="ü" * 40), told.result(test_accuracy=None)]
    formation = Gathering(3)
    everyone = await asyncio.gather(*(_everyones(formation.of(rank), each) for rank, each in enumerate(results)))
    assert everyone == [dict(enumerate(results))] * 3
