"""The delay benchmark's figures: medians, ratios, what distance alone takes, the bar, the table."""

from argparse import Namespace

import pytest
from bench.compare import identity
from bench.delay.command import links_of
from bench.delay.gloo import with_port
from bench.delay.launch import Link, why_no_gloo
from bench.delay.report import judge, least_seconds, markdown, summarise

MIB = 2**20
LONG = Link(0.1, 4 * MIB)


def test_ratios_are_of_neighbouring_turns() -> None:
    turns = {"gloo": [4.0, 8.0, 4.0], "1": [2.0, 4.0, 2.0], "16": [0.5, 1.0, 0.25]}
    gloo, one, many = summarise(LONG, turns, nbytes=10_000_000, ranks=2)
    assert (one["seconds"], many["seconds"]) == (2.0, 0.5)
    assert many["over_fewest"] == [4.0, 4.0, 6.0]
    assert (many["over_gloo"], one["over_gloo"][1], gloo["over_fewest"][1]) == ([8.0, 8.0, 12.0], 2.0, 0.5)
    assert [cell["contestant"] for cell in (gloo, one, many)] == ["gloo", "ringwide", "ringwide"]
    assert many["bytes_per_second"] == 20_000_000


@pytest.mark.parametrize(
    ("lanes", "nbytes", "ranks", "seconds"),
    [
        (1, 1 * MIB, 2, 0.1),  # there and back
        (1, 62 * MIB, 2, 1.55),  # 16 windows, of which the last has only to arrive
        (2, 62 * MIB, 2, 0.75),
        (16, 62 * MIB, 2, 0.1),
        (16, 32 * MIB, 4, 0.3),  # six hops
    ],
)
def test_distance_and_windows_take_their_time(lanes: int, nbytes: int, ranks: int, seconds: float) -> None:
    assert least_seconds(LONG, lanes=lanes, nbytes=nbytes, ranks=ranks) == pytest.approx(seconds)


def test_a_shared_line_takes_its_time_too() -> None:
    link = Link(0.1, 4 * MIB, bytes_per_second=1e6)
    assert least_seconds(link, lanes=16, nbytes=10_000_000, ranks=2) == pytest.approx(10)


@pytest.mark.parametrize(("seconds", "met"), [(0.19, True), (0.21, False)])
def test_sixteen_lanes_should_be_five_times_one(seconds: float, met: bool) -> None:
    cells = summarise(LONG, {"1": [1.0], "16": [seconds]}, nbytes=64 * MIB, ranks=2)
    (bar,) = judge(cells)
    assert bar["met"] is met
    assert judge(cells[:1]) == []
    table = markdown({"cells": cells, "bars": [bar]})
    assert f"| 100 ms | 4 MiB | 16 | {seconds:.3f} s |" in table
    assert ("Missed" in table) is not met


def test_cells_of_different_links_are_told_apart() -> None:
    links = (LONG, Link(0.05, 4 * MIB), Link(0.1, 2 * MIB))
    cells = [cell for link in links for cell in summarise(link, {"1": [1.0], "16": [0.2]}, nbytes=MIB, ranks=2)]
    assert len({identity(cell) for cell in cells}) == 6


def test_a_link_without_delay_is_always_measured_too() -> None:
    options = Namespace(rate="80Mbit", window="1MiB,2MiB", round_trip="50,100")
    links = links_of(options)
    assert links[0] == Link(0.0, MIB, 1e7)
    assert links[1:] == [Link(delay, window * MIB, 1e7) for window in (1, 2) for delay in (0.05, 0.1)]


def test_gloo_is_told_of_the_proxy_instead() -> None:
    """The bytes that it tells its store: a count, a host, a sockaddr, and more."""
    told = b"\2\0\0\0\0\0\0\0vm\2\0\x94\xdb\x7f\0\0\1\0\0\0\0"
    assert with_port(told, 0x0102) == (told.replace(b"\x94\xdb", b"\1\2"), 0x94DB)
    assert with_port(b"no address", 1) is None


def test_gloo_takes_part_between_two_ranks_only() -> None:
    assert why_no_gloo(3) == "gloo passes the proxy only between two ranks, not between 3"
