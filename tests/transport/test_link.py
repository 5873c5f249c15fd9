"""A link: what travels on which lane, over real connections."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from ringwide.protocol.frame import FrameKind, news
from ringwide.transport.link import STAGING_BYTES, Link
from transport.wire import SMALL_BUFFER_BYTES, Ends, OwnedPayload, Wiring, header_of, lanes, pattern

MIB = 1024 * 1024


@asynccontextmanager
async def link_of(*indices: int, wiring: Wiring = Wiring.PLAIN) -> AsyncIterator[tuple[Link, dict[int, Ends]]]:
    """A link with these lanes, and the connections by lane. Lanes are added in the order given."""
    async with AsyncExitStack() as stack:
        link, ends = Link(1, lambda peer: None), {}
        for index in indices:
            staging = 0 if index else STAGING_BYTES
            connection = lanes(buffer_bytes=SMALL_BUFFER_BYTES, index=index, staging_bytes=staging, wiring=wiring)
            ends[index] = await stack.enter_async_context(connection)
            link.add(ends[index].here)
        yield link, ends


def send_bulk(link: Link, stripe: int, owned: OwnedPayload, *, collective: int = 1) -> None:
    header = header_of(stripe, len(owned.memory))
    link.send_bulk(header, memoryview(owned.memory), stripe=stripe, owner=owned, key=collective)


async def test_bulk_is_striped_over_the_bulk_lanes_in_their_order() -> None:
    async with link_of(2, 0, 3, 1) as (link, ends):
        for stripe in range(6):
            send_bulk(link, stripe, OwnedPayload(ends[1].here, pattern(100, stripe)))
        for index in (1, 2, 3):
            hearing = ends[index].hearing_there
            await hearing.until_frames(2)
            assert hearing.frames == [(s, pattern(100, s)) for s in (index - 1, index + 2)]
        assert ends[0].hearing_there.frames == []


async def test_news_and_small_frames_do_not_wait_behind_bulk() -> None:
    async with link_of(0, 1) as (link, ends):
        ends[1].hearing_there.open = False
        bulk = OwnedPayload(ends[1].here, pattern(8 * MIB))
        send_bulk(link, 0, bulk)
        link.send_express(header_of(7, 5), memoryview(b"small"))
        link.tell(news(FrameKind.ABORT, "enough"))
        await ends[0].hearing_there.until_frames(2)
        assert ends[0].hearing_there.frames == [(7, b"small"), (0, b"enough")]
        assert bulk.told_at == []


@pytest.mark.parametrize("wiring", Wiring, ids=lambda wiring: wiring.value)
async def test_news_arrive_whole_on_every_wire(wiring: Wiring) -> None:
    async with link_of(0, wiring=wiring) as (link, ends):
        link.tell(news(FrameKind.ABORT, "enough"))
        link.tell(news(FrameKind.GOODBYE, ""))
        await ends[0].hearing_there.until_frames(2)
        assert ends[0].hearing_there.frames == [(0, b"enough"), (0, b"")]


async def test_forget_reaches_every_bulk_lane_and_spares_the_express_lane() -> None:
    async with link_of(0, 1, 2) as (link, ends):
        over = [OwnedPayload(ends[index].here, pattern(4 * MIB, index)) for index in (1, 2, 1, 2)]
        for stripe, owned in enumerate(over):
            send_bulk(link, stripe, owned, collective=5)
        link.send_express(header_of(9, 4 * MIB), memoryview(pattern(4 * MIB)))
        assert all(ends[index].here.queued for index in ends)
        link.forget(5)
        assert [ends[index].here.queued for index in (0, 1, 2)] == [1, 1, 1]
        for index in (0, 1, 2):
            await ends[index].hearing_there.until_frames(1)
        assert [ends[index].hearing_there.frames[0][0] for index in (0, 1, 2)] == [9, 0, 1]
        assert all(owned.told_at == [] for owned in over)


async def test_news_for_a_peer_that_has_not_connected_is_dropped() -> None:
    Link(3, lambda peer: None).tell(news(FrameKind.GOODBYE, "it is done"))


async def test_a_link_shows_its_lanes() -> None:
    async with link_of(0, 1) as (link, _):
        lanes_shown = "<Lane 0 to rank 1 by tcp: 0 queued>, <Lane 1 to rank 1 by tcp: 0 queued>"
        assert repr(link) == f"<Link to rank 1: [{lanes_shown}]>"
