"""One node's part in an experiment."""

import multiprocessing
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ringwide.config.field_marks import DECIDES_BITS, fields_that
from ringwide.config.ring_config import RingConfig
from ringwide.errors import ConfigError
from ringwide.experiment.config import ExperimentConfig
from ringwide.experiment.find_peers import FoundPeers, PeerFinder
from ringwide.experiment.node_messages import Message, decode, encode
from ringwide.experiment.stop_signals import NodeStop
from ringwide.observe.process_memory import peak_bytes, shared_out_bytes
from ringwide.ring import Ring, join
from ringwide.training.progress import Result


@dataclass(frozen=True, slots=True)
class Worker:
    """Which node this is, in what, and how it is asked to stop."""

    rank: int
    others: PeerFinder
    experiment: Path  # the file, to name it in errors
    stopping: NodeStop
    resume: Path | None = None

    @property
    def speaks(self) -> bool:
        """Does this node show and record how the run goes? One of those that were started together is enough."""
        return self.rank == 0 or not self.others.together

    async def meet(self, config: ExperimentConfig, run: str | None) -> FoundPeers:
        if self.others.size != config.nodes:
            raise ConfigError(
                f"{self.experiment}: nodes: {config.nodes}: but {self.others.counted_in}; make them equal, "
                f"as with --set nodes={self.others.size}"
            )
        return await self.others.meet(config.ring, run)


async def take_part(
    part: Worker,
    config: ExperimentConfig,
    directory: Path,
    tell: Callable[[Message], None],
    met: FoundPeers | None = None,
) -> dict[int, Result]:
    """Train with the others. `tell` hears of this node alone; at the end every node knows how it went on each."""
    met = met or await part.meet(config, directory.name)
    # Imported before joining: it takes seconds, in which a member of a ring would keep the others waiting.
    from ringwide.experiment import preload
    from ringwide.training.checkpoint import Checkpoints
    from ringwide.training.loop import train

    checkpoints = None
    if config.checkpoint.every_steps is not None:
        where = Path(config.checkpoint.directory or directory / "checkpoints")
        checkpoints = Checkpoints(where, every_steps=config.checkpoint.every_steps, keep=config.checkpoint.keep)
    async with join(rank=part.rank, peers=met.peers, config=config.ring, listener=met.listener) as ring:
        stop = part.stopping.after_a_step()
        result = await train(
            ring,
            config.training,
            tell,
            stop=stop,
            checkpoints=checkpoints,
            resume=part.resume,
            ring_settings=config.ring.model_dump(mode="json", include=set(fields_that(RingConfig, DECIDES_BITS))),
        )
        siblings = config.nodes if multiprocessing.parent_process() else 0  # forked by a launcher, or alone
        return await _everyones(ring, await _with_memory(ring, result, preload.OF_TORCH, siblings))


async def _with_memory(ring: Ring, result: Result, of_torch: int, siblings: int) -> Result:
    """Looked at while all nodes are there: shared pages are counted once only if nobody has left."""
    await ring.barrier()
    memory = shared_out_bytes(siblings)
    await ring.barrier()
    torch = of_torch // max(siblings, 1)  # siblings share one import of it
    return replace(result, memory_bytes=memory, peak_memory_bytes=peak_bytes(), torch_memory_bytes=torch)


async def _everyones(ring: Ring, result: Result) -> dict[int, Result]:
    ours = encode(result).encode()
    longest = max(int(length[0]) for length in await ring.all_gather(np.array([len(ours)])))
    padded = np.frombuffer(ours.ljust(longest), np.uint8)
    told = [decode(bytes(theirs).decode(errors="replace")) for theirs in await ring.all_gather(padded)]
    return {rank: each for rank, each in enumerate(told) if isinstance(each, Result)}
