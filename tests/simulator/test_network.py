"""Simulated network and hosts: holes, freezes, resets and damaged frames."""

import pytest

from ringwide.errors import CorruptFrame, PeerLost
from ringwide.protocol.frame import HEADER_BYTES, FrameKind, news, sealed_frame, unpack
from ringwide.simulator.frame import garbled, stale
from ringwide.simulator.life import Life
from ringwide.simulator.scenario import FaultKind, scenario_of


def is_plain(seed: int) -> bool:
    scenario = scenario_of(seed)
    return scenario.size == 2 and scenario.fault.kind is FaultKind.NONE and scenario.conditions.capacity_bytes > 1000


@pytest.fixture
def life() -> Life:
    """Two ranks that do nothing by themselves."""
    return Life(next(filter(is_plain, range(1000))), timing=0)


def say(life: Life, sender: int = 0) -> None:
    life.network.links[sender][1 - sender].tell(news(FrameKind.ABORT, "", collective=9, epoch=life.scenario.epoch))
    life.network.clock.run()


def test_what_is_sent_into_a_hole_arrives_when_it_closes(life: Life) -> None:
    lane = life.network.links[0][1].lanes[0]
    lane.open_hole()
    say(life)
    assert lane.other.received == 0
    say(life, sender=1)
    assert lane.received == HEADER_BYTES, "it is a hole one way"
    lane.close_hole()
    life.network.clock.run()
    assert lane.other.received == HEADER_BYTES


def test_a_hole_closes_with_the_last_one_that_was_opened(life: Life) -> None:
    lane = life.network.links[0][1].lanes[0]
    lane.open_hole()
    lane.open_hole()
    lane.close_hole()
    assert not lane.is_open
    lane.close_hole()
    assert lane.is_open


def test_a_frozen_rank_reads_what_has_come_when_it_goes_on(life: Life) -> None:
    host, dispatcher = life.network.hosts[1], life.ranks[1].dispatcher
    host.freeze()
    for lane in life.network.links[0][1].connections:
        lane.close()
    life.network.clock.run()
    assert dispatcher.over is None
    host.thaw()
    life.network.clock.run()
    assert isinstance(dispatcher.over, PeerLost)


def test_who_is_not_told_of_a_reset_learns_of_it_when_it_sends(life: Life) -> None:
    lane = life.network.links[0][1].lanes[0]
    lane.break_off()
    life.network.clock.run()
    assert life.ranks[0].dispatcher.over is not None
    assert life.ranks[1].dispatcher.over is None
    say(life, sender=1)
    assert life.ranks[1].dispatcher.over is not None


def test_a_garbled_frame_differs_in_one_bit() -> None:
    frame = sealed_frame(news(FrameKind.ABORT, "words"))
    for place in (0.0, 0.5, 1.0):
        damaged = garbled(frame, place)
        assert sum((a ^ b).bit_count() for a, b in zip(frame, damaged, strict=True)) == 1
    with pytest.raises(CorruptFrame):
        unpack(garbled(frame, 0.0), limit_bytes=0, sealed=True)


@pytest.mark.parametrize("sealed", [False, True])
def test_a_stale_frame_is_valid_but_of_another_epoch(sealed: bool) -> None:
    frame = news(FrameKind.ABORT, "words", epoch=7)
    assert unpack(stale(frame, sealed=sealed), limit_bytes=0, sealed=sealed).epoch == 6
    assert stale(frame, sealed=sealed)[HEADER_BYTES:] != frame[HEADER_BYTES:]
