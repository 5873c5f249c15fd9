"""Engine of a ring: what is built on a core once the ring has formed, and carries out the calls of one rank."""

from collections.abc import Callable, Sequence
from time import perf_counter

from ringwide.compression.policy import CodecPolicy
from ringwide.config.ring_config import RingConfig
from ringwide.errors import ConfigError
from ringwide.observe import statistics
from ringwide.p2p.all_to_all import AllToAlls
from ringwide.p2p.tensor_messages import Messages
from ringwide.runtime.call_queue import CallQueue
from ringwide.runtime.caller_identity import Descent
from ringwide.runtime.core import Core, FormedRing, RingCore
from ringwide.runtime.subgroup import SubgroupCore
from ringwide.tensors.bucket import BufferPool

_NO_MESSAGES = "this ring carries no messages: join it with RingConfig(messages=True), on every rank"


class Engine:
    """The engine of one rank."""

    def __init__(
        self,
        core: Core,
        formed: FormedRing,
        descent: Descent | None = None,
        *,
        time: Callable[[], float] = perf_counter,
    ) -> None:
        self._core, self.config, self.rank, self.size = core, core.config, formed.rank, formed.size
        self.links, self.dispatcher = formed.links, core.dispatcher
        topology, config = formed.topology, core.config
        self.planner = core.planner(tree_bytes=topology.tree_bytes, express_bytes=topology.express_bytes)
        self.calls = CallQueue(
            self.dispatcher,
            looks={peer: link.lanes[0].poll for peer, link in formed.links.items()},
            # Where ranks are more than cores, those with the answer need the cores.
            linger_seconds=0.0 if formed.ranks_here > formed.cores_here else config.linger_seconds,
            leaving=core.leaving,
            descent=descent,
            time=time,
        )
        self.pool = BufferPool()
        self._messages, self._all_to_alls = None, None
        if core.endpoint is not None:
            self._messages = Messages(core.endpoint, self.pool, leaving=core.leaving)
            self._all_to_alls = AllToAlls(
                core.endpoint,
                self.pool,
                rank=formed.rank,
                size=formed.size,
                planner=self.planner,
                is_ahead=self.dispatcher.channels.is_ahead,
                leaving=core.leaving,
            )

    def __str__(self) -> str:
        return "left" if self.calls.left else str(self.dispatcher.over or "joined")

    @property
    def is_open(self) -> bool:
        return not self.calls.left and self.dispatcher.over is None

    @property
    def codec_policy(self) -> CodecPolicy | None:
        return self._core.codec_policy

    @property
    def messages(self) -> Messages:
        if self._messages is None:
            raise ConfigError(_NO_MESSAGES)
        return self._messages

    @property
    def all_to_alls(self) -> AllToAlls:
        if self._all_to_alls is None:
            raise ConfigError(_NO_MESSAGES)
        return self._all_to_alls

    def statistics(self) -> statistics.Statistics:
        policy, stragglers = self.codec_policy, self._core.heartbeats.stragglers
        return statistics.Statistics(
            collectives=self.calls.made,
            network_seconds=self.calls.running_seconds,
            buffer_bytes_asked=self.config.buffer_bytes,
            links=statistics.of_links(self.links, self.dispatcher.ledgers, stragglers),
            threshold_bytes=None if policy is None else policy.threshold.reported,
            choices=() if policy is None else policy.choices(),
            slow=self._core.slowest(),
        )

    def subgroup_core(self, ranks: Sequence[int], epoch: int, config: RingConfig) -> SubgroupCore:
        """Core of a subgroup of this ring."""
        if not isinstance(self._core, RingCore):
            raise ConfigError("a subgroup has no subgroups; make them of the ring that it belongs to")
        return SubgroupCore(self._core, ranks, epoch, config)

    async def leave(self, reason: str) -> None:
        """From now on calls are refused; then the core leaves."""
        self.calls.left = True
        await self._core.leave(reason)
