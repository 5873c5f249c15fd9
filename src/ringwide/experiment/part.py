"""One node's part in an experiment."""

import os
from collections.abc import Callable
from pathlib import Path

from ringwide.errors import ConfigError
from ringwide.experiment.config import ExperimentConfig
from ringwide.membership.peers import load_peers
from ringwide.ring import join
from ringwide.training.progress import Result, Step


async def take_part(
    config: ExperimentConfig,
    *,
    rank: int,
    peers: str | os.PathLike[str],
    experiment: Path,
    on_step: Callable[[Step], None],
) -> Result:
    named = len(load_peers(peers))
    if named != config.nodes:
        raise ConfigError(f"{experiment}: nodes: {config.nodes}: but {peers} names {named} peers; make them equal")
    # Imported before joining: it takes seconds, in which a member of a ring would keep the others waiting.
    from ringwide.training.loop import train

    async with join(rank=rank, peers=peers, config=config.ring) as ring:
        return await train(ring, config.training, on_step)
