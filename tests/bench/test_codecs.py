"""What the codec benchmark makes of its turns. Measuring is not tested here, judging is."""

from typing import Any

import pytest
from bench.codecs import VARIANTS, parse_rate, rounds_for
from bench.codecs_report import judge, lesser_markdown, markdown, row, summarise

from ringwide.compression.codecs import registry

MB = 10**6
HOSTS = 4
CARRIED = 1.5 * 64 * MB  # by each link of four hosts


def cells_of(
    rate: float | None, seconds: dict[str, list[float]], data: str = "gaussian", *, sent: float = CARRIED
) -> Any:
    variants = [{"name": name, "data": data, "lesser": name == "zlib"} for name in seconds]
    played = [
        {"seconds": turns, "wire_bytes": [0 if name == "gloo" else sent] * len(turns), "settled_on": None}
        for name, turns in seconds.items()
    ]
    return summarise(variants, played, rate=rate, nbytes=64 * MB, hosts=HOSTS)


def verdicts(cells: Any) -> dict[str, bool]:
    return {bar["bar"]: bar["met"] for bar in judge(cells)}


def test_a_ratio_is_taken_turn_by_turn() -> None:
    """When the machine is slow for one turn, both are slow, and the ratio stays."""
    none, int8 = cells_of(1e9, {"none": [0.8, 8.0, 0.8], "int8": [0.2, 2.0, 0.2]})
    assert int8["over_none"] == pytest.approx([4, 4, 4])
    assert none["seconds"] == 0.8
    assert none["bus_bytes_per_second"] == pytest.approx(120 * MB)
    assert none["line_fraction"] == pytest.approx(0.96)


def test_loopback_has_no_line_and_gloo_no_bytes() -> None:
    gloo, none = cells_of(None, {"gloo": [0.2, 0.2], "none": [0.2, 0.2]})
    assert (gloo["line_fraction"], gloo["wire_ratio"]) == (None, None)
    assert none["wire_ratio"] == 1


@pytest.mark.parametrize(("seconds", "met"), [(CARRIED * 8 / 1e9 / 0.95, True), (CARRIED * 8 / 1e9 / 0.93, False)])
def test_none_should_fill_the_line(seconds: float, met: bool) -> None:
    assert verdicts(cells_of(1e9, {"none": [seconds]})) == {"none at 1 Gbit/s reaches 0.94 of it": met}


@pytest.mark.parametrize(("auto", "met"), [(0.104, True), (0.106, False)])
def test_auto_is_held_against_the_best_that_it_may_use(auto: float, met: bool) -> None:
    seconds = {"none": [0.4], "int8": [0.1], "topk": [0.01], "auto": [0.4], "auto, lossy": [auto]}
    found = verdicts(cells_of(None, seconds))
    assert found["auto on gaussian at loopback is within 5 % of the best it may use"]
    assert found["auto, lossy on gaussian at loopback is within 5 % of the best it may use"] is met


def test_lz4_should_cost_little_where_it_gains_nothing_and_gain_where_it_can() -> None:
    found = verdicts(
        cells_of(1e8, {"none": [1.0], "lz4": [1.04]})
        + cells_of(1e8, {"none": [1.0], "lz4": [0.4]}, "zeros", sent=CARRIED / 3.5)
    )
    assert found["lz4 on gaussian at 100 Mbit/s is within 3 % of none"] is False
    assert found["lz4 on zeros at 100 Mbit/s sends a third of the bytes"] is True


def test_what_was_not_measured_is_not_judged() -> None:
    assert verdicts(cells_of(1e9, {"int8": [0.2]})) == {}


def test_tables_have_a_row_for_each_cell() -> None:
    cells = cells_of(1e9, {"gloo": [0.8], "none": [0.8]})
    table = markdown({"cells": cells, "bars": judge(cells)})
    assert "| 1 Gbit/s | none | gaussian | 0.800 |" in table
    assert "| none at 1 Gbit/s reaches 0.94 of it | 0.960 | met |" in table
    assert row(cells[0]).split()[:4] == ["1", "Gbit/s", "gloo", "gaussian"]


def test_every_codec_is_measured() -> None:
    measured = {variant.settings["codec"] for variant in VARIANTS if variant.settings is not None}
    assert measured == {*registry.NAMES, "auto"}


def test_lesser_codecs_are_compared_in_the_rounds_that_they_took_part_in() -> None:
    none, zlib = cells_of(1e8, {"none": [8.0, 8.0, 2.0, 2.0], "zlib": [4.0, 4.0]})
    assert zlib["over_none"] == [2, 2, 2]
    assert (none["lesser"], zlib["lesser"]) == (False, True)
    assert "| 100 Mbit/s | zlib | gaussian | 4.000 |" in lesser_markdown({"lesser": [zlib]})


def test_rates_are_read_as_tc_writes_them() -> None:
    assert [parse_rate(text) for text in ("loopback", "1Gbit", "100Mbit", "2.5gbit")] == [None, 1e9, 1e8, 2.5e9]
    with pytest.raises(SystemExit, match="'fast' is not a rate"):
        parse_rate("fast")


def test_slow_links_get_fewer_rounds() -> None:
    assert [rounds_for(rate, 64 * MB, HOSTS) for rate in (None, 1e9, 1e8)] == [9, 6, 3]
