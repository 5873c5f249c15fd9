"""Simulated network and hosts: holes, freezes and resets."""

import pytest

from ringwide.errors import PeerLost
from ringwide.protocol.frame import HEADER_BYTES, FrameKind, news
from ringwide.simulator.ring_life import Life
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
