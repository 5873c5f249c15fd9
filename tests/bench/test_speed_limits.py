"""What the machine allows, by arithmetic."""

import pytest
from bench.speed.limits import (
    ADD,
    COPY,
    PING_TCP,
    PING_UNIX,
    STREAM_CACHED,
    STREAM_TCP,
    Probe,
    hops,
    least_seconds,
    probes_for,
)

MB = 2**20


def test_a_ring_moves_its_bytes_as_fast_as_two_processes_that_swap_them() -> None:
    """64 MB between 4 ranks are 2 x 3 x 64 MB in all; two processes at 1 GB/s each way move 2 GB in a second."""
    stream = {Probe(STREAM_TCP, 64 * MB): 64 * MB / 1e9}
    limit, least = least_seconds("tcp", "ring", 4, 64 * MB, stream, cores=2) or ("", 0)
    assert limit == "raw TCP both ways"
    assert least == pytest.approx(2 * 3 * 64 * MB / 2e9)


def test_the_limit_is_the_better_of_what_raw_tcp_did() -> None:
    """Nobody should be able to beat it: whole tensors are slower than what stays in the cache."""
    for faster, slower in ((STREAM_CACHED, STREAM_TCP), (STREAM_TCP, STREAM_CACHED)):
        seconds = {Probe(faster, 64 * MB): 0.03, Probe(slower, 64 * MB): 0.06}
        assert least_seconds("tcp", "ring", 2, 64 * MB, seconds, cores=2) == ("raw TCP both ways", pytest.approx(0.03))


def test_a_ring_of_little_still_has_its_hops() -> None:
    seconds = {Probe(STREAM_TCP, MB): 1e-6, Probe(PING_TCP, MB // 4): 1e-3}
    assert least_seconds("tcp", "ring", 4, MB, seconds, cores=2) == ("raw TCP both ways", pytest.approx(6 * 0.5e-3))


@pytest.mark.parametrize(("cores", "least"), [(1, 0.018), (2, 0.009), (64, 0.0045)])
def test_in_memory_ranks_share_the_cores_that_there_are(cores: int, least: float) -> None:
    seconds = {Probe(COPY, 16 * MB): 0.002, Probe(ADD, 16 * MB): 0.004}
    assert least_seconds("same host", "ring", 4, 16 * MB, seconds, cores) == ("copy and add", pytest.approx(least))


@pytest.mark.parametrize(
    ("algorithm", "ranks", "count"),
    [
        ("doubling", 2, 1),
        ("doubling", 8, 3),
        ("doubling", 6, 4),
        ("star", 8, 2),
        ("tree", 8, 2),
        ("tree", 17, 4),
        ("ring", 4, 6),
    ],
)
def test_what_is_small_takes_its_hops(algorithm: str, ranks: int, count: int) -> None:
    assert hops(algorithm, ranks) == count


def test_a_hop_is_half_a_round_trip_on_the_same_way() -> None:
    seconds = {Probe(PING_TCP, 4096): 60e-6, Probe(PING_UNIX, 4096): 40e-6}
    assert least_seconds("tcp", "star", 8, 4096, seconds, 2) == ("2 x half a TCP ping", pytest.approx(60e-6))
    assert least_seconds("same host", "doubling", 4, 4096, seconds, 2) == ("2 x half a Unix ping", pytest.approx(40e-6))


@pytest.mark.parametrize("algorithm", ["ring", "tree", "star", "doubling"])
@pytest.mark.parametrize("way", ["tcp", "same host"])
@pytest.mark.parametrize("nbytes", [1024, 2**18, MB, 256 * MB])
def test_what_a_limit_needs_is_what_is_tried(algorithm: str, way: str, nbytes: int) -> None:
    seconds = dict.fromkeys(probes_for({algorithm}, 4, nbytes), 0.001)
    assert least_seconds(way, algorithm, 4, nbytes, seconds, 2) is not None


def test_what_was_not_measured_allows_nothing() -> None:
    assert least_seconds("tcp", "ring", 4, MB, {}, 2) is None
    assert least_seconds("same host", "ring", 4, MB, {Probe(COPY, MB): 1.0}, 2) is None
    assert least_seconds("tcp", "star", 4, 4096, {}, 2) is None
