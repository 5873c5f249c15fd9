"""How `auto` finds the fastest codec: a state machine that is told seconds and answers with decisions."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest

from ringwide.compression.autotune import (
    DRIFTED_CALLS,
    MEASURED_CALLS,
    QUIET_CALLS,
    RECHECK_CALLS,
    SAMPLED_SPOTS,
    SETTLING_CALLS,
    SPOT_BYTES,
    Candidate,
    Decision,
    Explorer,
    candidate,
)
from ringwide.compression.codecs.base import Array
from ringwide.compression.codecs.registry import AUTO, make

CALLS_PER_TRIAL = SETTLING_CALLS + MEASURED_CALLS
NAMES = ("lz4", "zlib", "bf16", "int8")
CODECS = {name: make(name) for name in NAMES}
PROMISING = [Candidate(CODECS[name], ratio=0.3) for name in NAMES]


class Network:
    """What a call takes with each codec, and who listens to the explorer."""

    def __init__(self, seconds: Mapping[str, float], candidates: Sequence[Candidate] = PROMISING) -> None:
        self.seconds, self.candidates = dict(seconds), candidates
        self.explorer = Explorer()
        self.decisions: list[Decision] = []
        self.asked = 0

    def call(self, seconds: float | None = None) -> Decision | None:
        """One call, as long as its codec takes; or as long as is said."""
        taken = self.seconds[self.explorer.current.name] if seconds is None else seconds
        decision = self.explorer.observe(taken, self._asked_for_candidates)
        if decision is not None:
            assert decision.codec == self.explorer.current.name
            self.decisions.append(decision)
        return decision

    def until_settled(self, most: int = 100) -> Decision:
        return next(decision for _ in range(most) if (decision := self.call()) is not None and decision.settled)

    def calls(self, count: int) -> "list[Decision | None]":
        return [self.call() for _ in range(count)]

    def _asked_for_candidates(self) -> Sequence[Candidate]:
        self.asked += 1
        return self.candidates

    @property
    def tried(self) -> list[str]:
        return [decision.codec for decision in self.decisions if not decision.settled]


SECONDS = {"none": 1.0, "lz4": 0.8, "zlib": 2.0, "bf16": 0.6, "int8": 0.7}


@pytest.mark.parametrize("fastest", NAMES)
def test_the_fastest_is_found_whichever_it_is(fastest: str) -> None:
    network = Network(SECONDS | {fastest: 0.35})
    assert network.until_settled().codec == fastest


def test_raw_numbers_come_first_and_every_trial_has_the_same_length() -> None:
    network = Network(SECONDS)
    assert network.explorer.current.codec is None
    when = [number for number, decision in enumerate(network.calls(5 * CALLS_PER_TRIAL), 1) if decision is not None]
    assert when == [CALLS_PER_TRIAL * trial for trial in range(1, 6)]
    assert sorted(network.tried) == sorted(NAMES)
    assert network.asked == 1


def test_the_call_after_a_change_is_not_measured() -> None:
    """Other ranks may have begun it before they heard of the change."""
    network = Network(SECONDS)
    while not network.decisions or not network.decisions[-1].settled:
        network.call(0.001)  # the first call with a codec, during which others still have the last one
        for _ in range(MEASURED_CALLS):
            network.call()
    assert network.decisions[-1].codec == "bf16"


def test_one_slow_call_in_a_trial_is_not_held_against_a_codec() -> None:
    network = Network(SECONDS)
    while not network.decisions or not network.decisions[-1].settled:
        network.call()
        network.call(30.0)
        for _ in range(MEASURED_CALLS - 1):
            network.call()
    assert network.decisions[-1].codec == "bf16"


def test_what_cannot_win_is_not_tried() -> None:
    slow_to_encode = Candidate(CODECS["zlib"], ratio=0.1, work_seconds=1.2)
    hardly_smaller = Candidate(CODECS["lz4"], ratio=0.98)
    worse_than_the_best_at_best = Candidate(CODECS["int8"], ratio=0.7)
    good = Candidate(CODECS["bf16"], ratio=0.5)
    network = Network(
        {"none": 1.0, "bf16": 0.6}, [slow_to_encode, hardly_smaller, worse_than_the_best_at_best, good]
    )  # a trial of any other would be a KeyError
    assert network.until_settled().codec == "bf16"
    assert network.tried == ["bf16"]


def test_the_most_promising_is_tried_first() -> None:
    ratios = {"bf16": 0.5, "int8": 0.25, "lz4": 0.4}
    network = Network({"none": 1.0, **ratios}, [Candidate(CODECS[name], ratio) for name, ratio in ratios.items()])
    assert network.until_settled().codec == "int8"
    assert network.tried == ["int8"]  # it kept its promise, and nobody else promises as much


def test_a_promise_that_is_not_kept_lets_the_others_have_their_turn() -> None:
    ratios = {"bf16": 0.5, "int8": 0.25, "lz4": 0.4}
    seconds = {"none": 1.0, "int8": 1.5, "lz4": 0.7, "bf16": 0.52}
    network = Network(seconds, [Candidate(CODECS[name], ratio) for name, ratio in ratios.items()])
    assert network.until_settled().codec == "bf16"
    assert network.tried == ["int8", "lz4", "bf16"]


@pytest.mark.parametrize(("seconds", "chosen"), [(0.98, "none"), (0.96, "lz4")])
def test_raw_numbers_are_preferred_unless_a_codec_is_clearly_faster(seconds: float, chosen: str) -> None:
    network = Network({"none": 1.0, "lz4": seconds}, [Candidate(CODECS["lz4"], ratio=0.5)])
    assert network.until_settled().codec == chosen


def test_without_candidates_numbers_travel_raw() -> None:
    network = Network({"none": 1.0}, [])
    decision = network.until_settled(CALLS_PER_TRIAL)
    assert decision.codec == "none"
    assert decision.reason == "1 s a call (nothing else could be faster; first calls)"


def test_reasons_are_sentences_with_figures() -> None:
    ratios = {"bf16": 0.1, "lz4": 0.2}
    network = Network(
        {"none": 0.5, "lz4": 0.125, "bf16": 0.25}, [Candidate(CODECS[name], ratio) for name, ratio in ratios.items()]
    )
    settled = network.until_settled()
    assert settled.reason == "0.125 s a call (none 0.5 s, bf16 0.25 s; first calls)"
    assert network.decisions[0].reason == "a trial: none takes 0.5 s a call"


def settled_network() -> Network:
    network = Network({"none": 1.0, "bf16": 0.5, "lz4": 0.8}, [Candidate(CODECS["bf16"], 0.5), PROMISING[0]])
    assert network.until_settled().codec == "bf16"
    network.calls(QUIET_CALLS)
    assert network.decisions[-1].settled
    return network


@pytest.mark.parametrize(
    ("after", "chosen"),
    [({"none": 5.0, "bf16": 4.0, "lz4": 3.0}, "lz4"), ({"none": 0.04, "bf16": 0.05, "lz4": 0.06}, "none")],
    ids=["slower", "faster"],
)
def test_when_calls_change_for_good_everything_is_tried_again(after: dict[str, float], chosen: str) -> None:
    network = settled_network()
    network.seconds = after
    trial = next(decision for decision in network.calls(DRIFTED_CALLS) if decision is not None)
    assert (trial.codec, trial.settled) == ("none", False)
    assert trial.reason == f"a trial: calls took {network.seconds['bf16']:.3g} s instead of 0.5 s"
    settled = network.until_settled()
    assert settled.codec == chosen
    assert "instead of 0.5 s)" in settled.reason
    assert network.asked == 2  # numbers change too


@pytest.mark.parametrize("outlier", [0.001, 100.0])
def test_outliers_change_nothing(outlier: float) -> None:
    network = settled_network()
    for _ in range(20):
        for _ in range(DRIFTED_CALLS - 1):
            assert network.call(outlier) is None
        assert network.call() is None


@pytest.mark.parametrize("factor", [1.25, 0.8])
def test_a_small_change_for_good_is_none(factor: float) -> None:
    network = settled_network()
    network.seconds["bf16"] *= factor
    assert network.calls(100) == [None] * 100


def test_the_first_calls_after_settling_are_not_held_against_the_choice() -> None:
    network = Network({"none": 1.0, "bf16": 0.5}, [Candidate(CODECS["bf16"], 0.5)])
    network.until_settled()
    network.seconds["bf16"] = 50.0
    decisions = network.calls(QUIET_CALLS)
    assert decisions[:-1] == [None] * (QUIET_CALLS - 1)
    assert decisions[-1] is not None


def test_after_many_calls_it_is_tried_again_whether_the_choice_still_holds() -> None:
    network = Network({"none": 1.0, "bf16": 0.5, "lz4": 0.8}, [Candidate(CODECS["bf16"], 0.5), PROMISING[0]])
    network.until_settled()
    network.seconds["lz4"] = 0.2  # nobody would notice: it is not in use
    decisions = network.calls(RECHECK_CALLS)
    assert decisions[:-1] == [None] * (RECHECK_CALLS - 1)
    assert decisions[-1] == Decision("none", f"a trial: {RECHECK_CALLS} calls later", settled=False)
    settled = network.until_settled()
    assert settled.codec == "lz4"
    assert f"; {RECHECK_CALLS} calls later)" in settled.reason


# -- what a sample tells


def clock(*ticks: float) -> Callable[[], float]:
    remaining = iter(ticks)
    return lambda: next(remaining)


def sampled(name: str, numbers: Array, *ticks: float) -> Candidate:
    return candidate(make(name), numbers, clock(*ticks) if ticks else lambda: 0.0)


def test_a_sample_tells_how_small_numbers_become() -> None:
    noise = np.random.default_rng(1).standard_normal(1_000_000).astype(np.float32)
    assert sampled("bf16", noise).ratio == 0.5
    assert sampled("int8", noise).ratio == pytest.approx(0.25, rel=0.05)
    assert sampled("lz4", np.zeros(1_000_000, np.float32)).ratio < 0.05


def test_a_sample_tells_how_long_the_whole_bucket_would_take() -> None:
    """Every rank encodes each segment once, and decodes it twice."""
    sample = np.ones(SAMPLED_SPOTS * SPOT_BYTES // 4, np.float32)
    assert sampled("bf16", sample, 0.0, 1.0, 4.0).work_seconds == 1.0 + 2 * 3.0
    assert sampled("bf16", np.tile(sample, 10), 0.0, 1.0, 4.0).work_seconds == 10 * (1.0 + 2 * 3.0)
    two = candidate(make("bf16"), sample, clock(0.0, 1.0, 4.0), threads=2)
    assert two.work_seconds == (1.0 + 2 * 3.0) / 2


def test_a_fast_codec_is_tried_more_than_once_since_the_first_time_is_slow() -> None:
    sample = np.ones(SAMPLED_SPOTS * SPOT_BYTES // 4, np.float32)
    ticks = (0.0, 0.008, 0.010, 1.0, 1.001, 1.002, 2.0, 2.002, 2.004)
    assert sampled("bf16", sample, *ticks).work_seconds == pytest.approx(0.003)


@pytest.mark.parametrize("name", ["lz4", "zlib"])
def test_what_whoever_encodes_would_send_raw_is_not_promising(name: str) -> None:
    """zlib makes gaussian numbers 7 % smaller, which is not worth its time: it is not tried, and not used."""
    noise = np.random.default_rng(1).standard_normal(1_000_000).astype(np.float32)
    assert sampled(name, noise).ratio == 1.0


@pytest.mark.parametrize("name", ["lz4", "zlib"])
def test_what_does_not_shrink_promises_nothing(name: str) -> None:
    noise = np.random.default_rng(1).integers(0, 256, 1_000_000, np.uint8)
    found = sampled(name, noise)
    assert found.best_seconds(1.0) >= 1.0


def test_what_a_codec_cannot_hold_promises_nothing() -> None:
    assert sampled("bf16", np.full(10_000, np.nan, np.float32)).best_seconds(1.0) == 1.0


def test_a_sample_may_be_larger_than_the_bucket() -> None:
    assert {sampled(codec.name, np.ones(3, np.float32)).name for codec in AUTO if "+" not in codec.name} == {
        "lz4",
        "zlib",
        "bf16",
        "int8",
    }
