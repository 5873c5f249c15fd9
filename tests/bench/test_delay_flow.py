"""One direction of a long link, on a virtual clock: late, in order, never more than a window in flight."""

import random

import pytest
from bench.delay.flow import Flow, Line

DELAY = 0.05


def put(flow: Flow, data: bytes, now: float) -> int:
    """As much of it as there is room for."""
    taken = 0
    while taken < len(data) and (room := flow.room(now)):
        count = min(len(room), len(data) - taken)
        room[:count] = data[taken : taken + count]
        flow.took(count, now)
        taken += count
    return taken


def get(flow: Flow, now: float) -> bytes:
    found = b""
    while piece := flow.due(now):
        found += piece
        flow.gave(len(piece), now)
    return found


def test_nothing_comes_before_its_time() -> None:
    flow = Flow(delay_seconds=DELAY, window_bytes=100)
    put(flow, b"first", 1.0)
    put(flow, b"second", 1.02)
    assert flow.next_due() == pytest.approx(1.05)
    assert get(flow, 1.0499) == b""
    assert get(flow, 1.0501) == b"first"
    assert get(flow, 1.0701) == b"second"
    assert flow.empty


def test_what_is_given_leaves_the_window_when_it_is_acknowledged() -> None:
    flow = Flow(delay_seconds=DELAY, window_bytes=10)
    assert put(flow, b"0123456789abc", 0.0) == 10
    assert put(flow, b"abc", 0.049) == 0
    assert get(flow, 0.0501) == b"0123456789"
    assert put(flow, b"abc", 0.0999) == 0  # it has arrived, but nobody here knows yet
    assert flow.next_room() == pytest.approx(0.1001)
    assert put(flow, b"abc", 0.1002) == 3
    assert get(flow, 0.1503) == b"abc"


def test_a_window_a_round_trip_is_all_that_it_carries() -> None:
    """Somebody who always has more to send, and somebody who always takes what is due."""
    flow, window, round_trips = Flow(delay_seconds=DELAY, window_bytes=1000), 1000, 7
    carried = 0
    for step in range(round_trips * 100):  # a hundredth of a round trip each
        now = step * DELAY / 50
        put(flow, bytes(window), now)
        carried += len(get(flow, now))
    assert carried <= round_trips * window
    assert carried >= (round_trips - 2) * window  # and not much less: the steps are coarse


@pytest.mark.parametrize("seed", range(20))
def test_every_byte_arrives_once_and_in_order_whatever_the_pieces(seed: int) -> None:
    chance = random.Random(seed)
    flow = Flow(delay_seconds=DELAY, window_bytes=chance.randint(1, 300))
    data = chance.randbytes(2000)
    sent, received, now = 0, b"", 0.0
    while len(received) < len(data):
        now += chance.random() * DELAY
        sent += put(flow, data[sent : sent + chance.randint(1, 400)], now)
        if chance.random() < 0.7 and (piece := flow.due(now)):
            count = chance.randint(1, len(piece))  # a socket takes what it likes
            received += piece[:count]
            flow.gave(count, now)
    assert received == data


def test_connections_share_a_line() -> None:
    line = Line(bytes_per_second=100)
    one, other = (Flow(delay_seconds=1.0, window_bytes=1000, line=line) for _ in range(2))
    put(one, bytes(200), 0.0)
    put(other, bytes(100), 0.0)
    assert (one.next_due(), other.next_due()) == (3.0, 4.0)
    put(one, bytes(100), 10.0)
    assert get(one, 11.9) == bytes(200)
    assert get(one, 12.0) == bytes(100)
