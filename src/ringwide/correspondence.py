"""The messages of a ring: its post office, tied to the ring's deadlines and to its end."""

import asyncio
from collections.abc import Callable, Mapping
from typing import NamedTuple

from ringwide.collective.dispatch import Dispatcher
from ringwide.collective.plan import Planner
from ringwide.config.ring_config import RingConfig
from ringwide.exchange import Exchanges
from ringwide.mail.office import PostOffice
from ringwide.messages import Messages
from ringwide.tensors.buffer_pool import BufferPool
from ringwide.transport.link import Link


class Correspondence(NamedTuple):
    """What a ring with `messages` has beside its collectives."""

    office: PostOffice
    messages: Messages
    exchanges: Exchanges


def correspondence(
    *,
    rank: int,
    links: Mapping[int, Link],
    dispatcher: Dispatcher,
    config: RingConfig,
    pool: BufferPool,
    planner: Planner,
    leaving: Callable[[], bool],
) -> Correspondence:
    """What waits for a message is looked at together with the collectives, and ends when the ring does."""
    office = PostOffice(
        rank=rank,
        links=links,
        clock=asyncio.get_running_loop(),
        segment_bytes=config.segment_bytes,
        timeout_seconds=config.collective_timeout_seconds,
        warn_after_seconds=config.warn_after_seconds,
        on_open=dispatcher.deadlines.start_ticking,
        on_lane_ended=dispatcher.parting.other_lane_ended,
    )
    dispatcher.deadlines.mail = dispatcher.parting.mail = office
    exchanges = Exchanges(
        office,
        pool,
        rank=rank,
        size=1 + len(links),
        planner=planner,
        is_ahead=dispatcher.channels.is_ahead,
        leaving=leaving,
    )
    return Correspondence(office, Messages(office, pool, leaving=leaving), exchanges)
