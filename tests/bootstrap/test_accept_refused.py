import logging

import pytest

from ringwide.bootstrap.accept import ADDRESSES_REMEMBERED, QUIET_SECONDS, RefusedConnections


class Clock:
    """A time that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def strangers(clock: Clock, caplog: pytest.LogCaptureFixture) -> RefusedConnections:
    caplog.set_level(logging.INFO, "ringwide.bootstrap")
    return RefusedConnections(0, clock=clock)


def lines(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == level]


def test_each_address_is_warned_of_once(strangers: RefusedConnections, caplog: pytest.LogCaptureFixture) -> None:
    for host in ("10.0.0.1", "10.0.0.2", "10.0.0.1"):
        strangers.refused(host, "it speaks HTTP")
    assert lines(caplog, logging.WARNING) == [
        "rank 0 turned away a connection from 10.0.0.1: it speaks HTTP",
        "rank 0 turned away a connection from 10.0.0.2: it speaks HTTP",
    ]


def test_ten_thousand_make_a_few_lines(
    strangers: RefusedConnections, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(10_000):
        strangers.refused(f"10.0.{number // 250}.{number % 250}", "it speaks HTTP")
        strangers.ended("10.0.0.1", "the connection ended")
    assert len(lines(caplog, logging.WARNING)) == ADDRESSES_REMEMBERED
    assert len(lines(caplog, logging.INFO)) == 1
    clock.now += QUIET_SECONDS
    strangers.ended("", "the connection ended")
    assert lines(caplog, logging.INFO)[1:] == [
        f"rank=0 connections_ended={20_000 - ADDRESSES_REMEMBERED} last_from=unknown reason=the connection ended"
    ]
