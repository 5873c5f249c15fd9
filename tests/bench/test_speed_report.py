"""What the speed benchmark makes of its turns: figures, bars, tables, pictures. Measuring is not tested here."""

from pathlib import Path
from typing import Any

import pytest
from bench.speed.bars import judge
from bench.speed.command import choose, make_report, parse_settings
from bench.speed.contestants import GLOO, HIVEMIND, OPENMPI_SHM, RINGWIDE, RINGWIDE_TCP
from bench.speed.leader import Plan, turn_seconds
from bench.speed.plot import plot
from bench.speed.summary import cells_of, limits_of, quartiles
from bench.speed.tables import bars, fractions, limits, markdown, shown
from bench.speed.turns import expected_sum, time_awaited_calls, time_calls
from bench.units import parse_counts, parse_size, span

from made_up_speed import MB, measured


def cell(name: str, nbytes: int = 16 * MB) -> dict[str, Any]:
    return next(one for one in cells_of(measured(), cores=2) if (one["contestant"], one["bytes"]) == (name, nbytes))


def report() -> dict[str, Any]:
    return make_report(Plan([4], [4096, 16 * MB], 3), choose("gloo,ringwide", {}), measured())


def test_ratios_are_of_neighbouring_turns_so_that_noise_that_hits_both_is_no_noise() -> None:
    ours = cell(RINGWIDE)
    assert ours["seconds"] == pytest.approx(0.040)
    assert ours["seconds_quartiles"] == pytest.approx([0.040, 0.060])
    assert ours["over"][GLOO] == pytest.approx([3, 3, 3])
    assert ours["over"][OPENMPI_SHM] == pytest.approx([0.75] * 3)


def test_rounds_in_which_only_one_had_a_turn_are_left_out_of_the_ratio() -> None:
    found = measured()
    found.turns[4, 16 * MB, HIVEMIND][1] = 0.8
    ours = next(one for one in cells_of(found) if one["contestant"] == RINGWIDE and one["bytes"] == 16 * MB)
    assert ours["over"][HIVEMIND] == pytest.approx([10, 10, 10])


def test_ours_stand_beside_the_limit_and_peers_do_not() -> None:
    assert cell(RINGWIDE_TCP)["fraction"] == pytest.approx([3 * 0.008 / 0.060] * 3)
    assert cell(RINGWIDE_TCP)["fraction_tensors"] == pytest.approx([3 * 0.016 / 0.060] * 3)
    assert cell(RINGWIDE)["fraction"] == pytest.approx([3 * 0.006 / 2 / 0.040] * 3)
    assert cell(RINGWIDE_TCP, 4096)["fraction"] == pytest.approx([0.1] * 3)
    assert "fraction" not in cell(GLOO)
    assert "fraction" not in cell(RINGWIDE, 4096)  # no round trip by a Unix-domain socket was measured


def test_what_the_machine_did_is_a_time_and_a_rate() -> None:
    stream = next(one for one in limits_of(measured()) if one["probe"] == "stream tcp")
    assert stream["bytes_per_second"] == pytest.approx(16 * MB / 0.016)


def test_a_turn_is_the_median_call_of_the_slowest_rank() -> None:
    assert turn_seconds([{"seconds": [1.0, 5.0, 2.0]}, {"seconds": [3.0, 1.0, 9.0]}]) == 5.0
    assert turn_seconds([{"seconds": [1.0, 2.0]}, {"seconds": []}]) == 1.5  # a rank that had no part in it


def test_one_round_has_quartiles_too() -> None:
    assert quartiles([2.0]) == [2.0, 2.0, 2.0]


def test_a_bar_is_reached_if_every_size_reaches_it() -> None:
    verdicts = {(bar["bar"], bar["ranks"]): bar for bar in judge(cells_of(measured(), cores=2))}
    large = verdicts["16 to 256 MB, on the same host, beside gloo", 4]
    assert (large["least"], large["met"]) == (pytest.approx(3), True)
    assert verdicts["16 to 256 MB, on the same host, beside Open MPI's shared memory", 4]["met"] is False
    assert verdicts["16 to 256 MB, over TCP, a fraction of the raw TCP limit", 4]["met"] is False
    assert not any(ranks == 8 for _, ranks in verdicts)  # which was not measured

    slow_at_one_size = cells_of(measured(), cores=2)
    slow_at_one_size.append({**cell(RINGWIDE), "bytes": 64 * MB, "over": {GLOO: [1, 1, 1]}})
    again = {(bar["bar"], bar["ranks"]): bar for bar in judge(slow_at_one_size)}
    large = again["16 to 256 MB, on the same host, beside gloo", 4]
    assert (large["least"], large["most"], large["met"]) == (1, pytest.approx(3), False)


def test_tables() -> None:
    table = markdown(report())
    assert "| 4 | 16 MiB | 120.00 ms | 30.00 ms | 60.00 ms | 40.00 ms | **2.00x** [2.00 - 2.00] | **3.00x**" in table
    assert "| 4 | 4 KiB | 8.00 ms | - | 1.00 ms | 500 us |" in table
    assert "| 4 | 16 MiB | - | - | 1.05 GB/s | 2.10 GB/s | 2.10 GB/s | 8.39 GB/s | 4.19 GB/s |" in limits(report())
    assert "| 4 | 4 KiB | 100 us |" in limits(report())
    assert "| 16 to 256 MB, over TCP, beside gloo | 4 | 1.1 | 2.00 | met |" in bars(report())
    assert "| raw TCP both ways | 24.00 ms | 0.40 [0.40 - 0.40] | 0.80 of raw TCP with whole tensors |" in fractions(
        report()
    )


def test_who_was_skipped_is_named_with_the_reason() -> None:
    found = measured()
    found.skip(choose("mpich", {})[0], None, "installing it failed")
    found.skip(choose("hivemind", {})[0], 8, "rank 3 is gone")
    told = shown(make_report(Plan([4], [4096], 3), choose(None, {}), found))
    assert "mpich is skipped: installing it failed" in told
    assert "hivemind at 8 ranks is skipped: rank 3 is gone" in told


def test_the_report_says_where_and_with_what() -> None:
    assert report()["machine"].endswith("Open MPI 5.0.11")
    assert report()["settings"]["ringwide"].startswith("same_host: auto")


def test_pictures_of_the_same_figures_are_the_same_files(tmp_path: Path) -> None:
    names = {"speed-latency.svg", "speed-bandwidth.svg", "speed-ratio.svg", "speed-fraction.svg"}
    first = {path.name: path.read_bytes() for path in plot(report(), tmp_path)}
    assert first.keys() == names
    assert {path.name: path.read_bytes() for path in plot(report(), tmp_path)} == first


@pytest.mark.parametrize("calls", [2, 10, 50])
@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
async def test_sums_stay_exact_however_often_they_are_summed(calls: int, ranks: int) -> None:
    value = [0]

    def fill() -> None:
        value[0] = 1

    def call() -> None:
        value[0] *= ranks

    async def awaited_call() -> None:
        call()

    assert len(time_calls(calls, ranks, fill, call)) == calls
    assert value[0] == expected_sum(calls, ranks) <= 2**24
    assert len(await time_awaited_calls(calls, ranks, fill, awaited_call)) == calls
    assert value[0] == expected_sum(calls, ranks)


def test_sizes_are_powers_of_two_however_they_are_spelled() -> None:
    assert [parse_size(text) for text in ("1KB", "1 KiB", "4mb", "2GB", "12")] == [1024, 1024, 4 * MB, 2**31, 12]
    for wrong in ("many", "0KB", "-1KB", "1TB", "3", ""):
        with pytest.raises(SystemExit, match="is not a size"):
            parse_size(wrong)
    with pytest.raises(SystemExit, match="is not a list of whole numbers"):
        parse_counts("2,zero")


def test_settings_of_ringwide_reach_its_contestants() -> None:
    ours = choose("ringwide-tcp,ringwide", parse_settings(["lanes=2"]))
    assert [dict(one.settings) for one in ours] == [
        {"same_host": "tcp", "lanes": "2"},
        {"same_host": "auto", "lanes": "2"},
    ]
    with pytest.raises(SystemExit, match="sets nothing"):
        parse_settings(["lanes"])


def test_nobody_is_called_that() -> None:
    with pytest.raises(SystemExit, match="nobody is called 'glo'; there are gloo, "):
        choose("glo", {})


def test_spans() -> None:
    assert [span(seconds) for seconds in (40, 100, 4800)] == ["40 s", "2 min", "1 h 20 min"]
