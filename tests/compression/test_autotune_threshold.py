"""The size from which a codec pays: the one that was set, or the one that follows from what was measured."""

import pytest

from ringwide.compression.autotune import (
    DEFAULT_BYTES,
    JOB_SECONDS,
    NEVER,
    PROBE_CALLS,
    SMALLEST_BYTES,
    Threshold,
    Totals,
)

MB = 1_000_000


class Calls:
    """A rank that sends the same in every call."""

    def __init__(self) -> None:
        self.threshold, self.totals = Threshold(None), Totals()

    def make(self, *, raw: int = 10 * MB, encoded: int = 5 * MB, codec_seconds: float, seconds: float) -> None:
        """A call whose segments became `encoded` bytes, which is all that was sent."""
        before = self.totals
        self.totals = Totals(
            before.raw_bytes + raw,
            before.encoded_bytes + encoded,
            before.wire_bytes + encoded,
            before.codec_seconds + codec_seconds,
        )
        self.threshold.observe(self.totals, seconds)


@pytest.mark.parametrize("nbytes", [0, 5000, DEFAULT_BYTES])
def test_one_that_was_set_stays(nbytes: int) -> None:
    threshold = Threshold(nbytes)
    for number in range(2 * PROBE_CALLS):
        threshold.observe(Totals(number * MB, number, number, 0.0), 1.0)
        assert threshold.nbytes == nbytes


def test_where_a_codec_pays_it_follows_from_what_a_byte_gains() -> None:
    calls = Calls()
    calls.make(seconds=5.0, codec_seconds=0.0)  # 1 MB/s: half of each byte saved gains 0.5 us
    assert calls.threshold.nbytes == max(SMALLEST_BYTES, int(JOB_SECONDS / 0.5e-6)) == SMALLEST_BYTES
    fast = Calls()
    fast.make(seconds=0.05, codec_seconds=0.025)  # 100 MB/s: saves 5 ns, costs 2.5 ns
    assert fast.threshold.nbytes == pytest.approx(JOB_SECONDS / 2.5e-9, rel=0.001)


def test_a_faster_network_raises_it_and_a_slower_one_lowers_it() -> None:
    limits = []
    for seconds in (0.2, 0.1, 0.05, 0.03):
        calls = Calls()
        calls.make(seconds=seconds, codec_seconds=0.01)
        limits.append(calls.threshold.nbytes)
    assert limits == sorted(limits)
    assert len(set(limits)) == 4


def test_where_a_codec_costs_more_than_it_saves_nothing_is_encoded() -> None:
    calls = Calls()
    calls.make(seconds=0.01, codec_seconds=0.02)
    assert calls.threshold.nbytes == NEVER


def test_the_fastest_call_tells_what_the_network_carries() -> None:
    """A call that waited for another rank says nothing about the network."""
    calls = Calls()
    calls.make(seconds=0.05, codec_seconds=0.01)
    calls.make(seconds=5.0, codec_seconds=0.01)
    alone = Calls()
    alone.make(seconds=0.05, codec_seconds=0.01)
    assert calls.threshold.nbytes == alone.threshold.nbytes


def test_a_network_that_becomes_slower_is_noticed() -> None:
    calls = Calls()
    calls.make(seconds=0.01, codec_seconds=0.02)
    assert calls.threshold.nbytes == NEVER
    for _ in range(PROBE_CALLS + 1):
        calls.make(seconds=5.0, codec_seconds=0.02)
    assert calls.threshold.nbytes == SMALLEST_BYTES


def test_what_does_not_pay_is_tried_again_now_and_then() -> None:
    calls = Calls()
    calls.make(seconds=0.01, codec_seconds=0.02)
    limits = []
    for _ in range(4 * PROBE_CALLS):
        limits.append(calls.threshold.nbytes)
        calls.make(raw=0, encoded=0, seconds=0.01, codec_seconds=0.0)  # all travels raw, nothing is learnt
    assert sum(limit <= DEFAULT_BYTES for limit in limits) == 4
    assert limits.count(NEVER) == len(limits) - 4


def test_a_codec_that_pays_for_small_segments_is_never_kept_from_them() -> None:
    calls = Calls()
    for _ in range(3 * PROBE_CALLS):
        calls.make(seconds=5.0, codec_seconds=0.0)
        assert calls.threshold.nbytes == SMALLEST_BYTES


def test_segments_smaller_than_the_default_are_measured_too() -> None:
    """Nothing is learnt from what travels raw: without a first try, small segments would never be encoded."""
    threshold = Threshold(None)
    tried = []
    for _ in range(PROBE_CALLS):
        tried.append(threshold.nbytes <= 64 * 1024)
        threshold.observe(Totals(), 1.0)
    assert any(tried)


def test_calls_without_a_codec_or_without_time_teach_nothing() -> None:
    calls = Calls()
    calls.make(seconds=0.05, codec_seconds=0.01)
    limit = calls.threshold.nbytes
    calls.make(raw=0, encoded=0, seconds=1.0, codec_seconds=0.0)
    calls.make(seconds=0.0, codec_seconds=0.0)
    assert calls.threshold.nbytes == limit


def test_where_somebody_else_sees_to_it_that_a_codec_pays_it_is_never_ruled_out() -> None:
    """`codec: auto` could not try another codec while the last one's stragglers still forbade to encode anything."""
    calls = Calls()
    calls.threshold = Threshold(None, always_pays=True)
    calls.make(codec_seconds=100.0, seconds=1.0)
    assert calls.threshold.nbytes == DEFAULT_BYTES


def test_what_people_see_is_a_size_or_nothing() -> None:
    calls = Calls()
    assert calls.threshold.reported == DEFAULT_BYTES
    calls.make(codec_seconds=100.0, seconds=1.0)
    assert calls.threshold.reported is None
    assert Threshold(4096).reported == 4096
