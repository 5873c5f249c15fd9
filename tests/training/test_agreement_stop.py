import asyncio
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from in_memory_ring import InMemoryRing, Meeting

from ringwide.training.agreement import ASK_EVERY_SECONDS, MOST_STEPS, StopAgreement
from ringwide.training.progress import StopRequest

FAR = 3000


class Runner:
    """A rank that only makes steps, each as long as it is told, and stops when the agreement says so."""

    def __init__(
        self, ring: InMemoryRing, limit: float | None = None, *, first_step: int = 1, signal_at: int | None = None
    ) -> None:
        self.ring, self.seconds, self.stop = ring, 0.0, StopRequest()
        self.beats: list[int] = []
        self._signal_at, self._first = signal_at, first_step
        self.agreement = StopAgreement(
            ring, seconds=lambda: self.seconds, stop=self.stop, limit=limit, first_step=first_step
        )

    async def run(self, *step_seconds: float) -> int:
        """The last step. What is given of `step_seconds` is repeated."""
        for step in range(self._first, self._first + FAR):
            self.seconds += step_seconds[step % len(step_seconds)]
            if step == self._signal_at:
                self.stop.signal = 15
            if self.agreement.is_due(step):
                self.beats.append(step)
                if await self.agreement.ask(step):
                    return step
        return 0


def alone(limit: float | None = None, **more: Any) -> Runner:
    return Runner(Meeting(1).ring(0), limit, **more)


durations = st.lists(st.floats(0, 2), min_size=1, max_size=5)


@given(st.lists(durations, min_size=2, max_size=4), st.floats(0.01, 5), st.none() | st.integers(1, 50))
def test_all_ranks_ask_and_stop_after_the_same_steps_whatever_their_clocks_say(
    clocks: list[list[float]], limit: float, signal_at: int | None
) -> None:
    async def run() -> list[tuple[int, list[int], int]]:
        meeting = Meeting(len(clocks))
        runners = [Runner(meeting.ring(rank), limit, signal_at=signal_at if rank == 1 else None) for rank in range(2)]
        runners += [Runner(meeting.ring(rank), limit) for rank in range(2, len(clocks))]
        last = await asyncio.gather(*(each.run(*clock) for each, clock in zip(runners, clocks, strict=True)))
        return [(step, each.beats, each.agreement.signal) for step, each in zip(last, runners, strict=True)]

    found = asyncio.run(run())
    assert all(each == found[0] for each in found)


@settings(max_examples=30)
@given(st.floats(0, 1e300), st.floats(1e-300, 1e300))
@example(step_seconds=5e-324, limit=1.0)
def test_no_clock_is_too_fast_or_too_slow(step_seconds: float, limit: float) -> None:
    runner = alone(limit, first_step=7)
    asyncio.run(runner.run(step_seconds, 0.0, step_seconds / 2))
    assert runner.beats[0] == 7


@given(st.floats(1e-4, 3), st.floats(0.05, 20))
def test_the_end_is_not_overshot_by_more_than_a_step_or_a_moment(step_seconds: float, limit: float) -> None:
    if limit / step_seconds > FAR / 2:
        limit = step_seconds * FAR / 2
    runner = alone(limit)
    last = asyncio.run(runner.run(step_seconds))
    assert last
    assert limit <= runner.seconds < limit + max(step_seconds * 1.001, 0.001)


@given(st.lists(st.floats(2e-3, 1), min_size=1, max_size=20), st.floats(1, 5))
def test_steps_of_any_length_overshoot_by_what_fitted_into_a_moment(steps: list[float], limit: float) -> None:
    runner = alone(limit)
    last = asyncio.run(runner.run(*steps))
    before = runner.beats[-2] if len(runner.beats) > 1 else 0
    assert last
    assert runner.seconds <= limit + (last - before) * max(steps)
    assert last - before <= max(1, ASK_EVERY_SECONDS / min(steps))


async def test_steps_that_are_long_are_followed_each_by_a_beat() -> None:
    runner = alone(limit=5.0)
    assert await runner.run(ASK_EVERY_SECONDS * 2) == 25
    assert runner.beats == list(range(1, 26))


async def test_steps_that_are_short_are_asked_after_a_few_times_a_second() -> None:
    runner = alone()
    await runner.run(ASK_EVERY_SECONDS / 20)
    assert runner.beats[:6] == [1, 3, 7, 15, 31, 50]
    between = {later - earlier for earlier, later in zip(runner.beats[6:], runner.beats[7:], strict=False)}
    assert between <= {19, 20}  # what fits, rounded down


@pytest.mark.parametrize("signal_at", [600, 601, 612, 624])
async def test_a_model_that_turns_slow_stops_after_a_bounded_number_of_steps(signal_at: int) -> None:
    runner = alone(signal_at=signal_at)
    quick, slow = [0.0001] * 600, [1.0] * FAR
    last = await runner.run(*quick, *slow)
    assert signal_at <= last < signal_at + 25


async def test_the_interval_shrinks_when_steps_get_longer_and_grows_again() -> None:
    runner = alone()
    slow, quick = [ASK_EVERY_SECONDS] * 500, [ASK_EVERY_SECONDS / 20] * 500
    await runner.run(*quick, *slow)
    intervals = {
        step: later - step for step, later in zip(runner.beats, runner.beats[1:], strict=False) if step < 2 * FAR
    }
    assert max(length for step, length in intervals.items() if 200 < step < 440) >= 19
    assert {length for step, length in intervals.items() if 600 < step < 990} == {1}
    assert max(length for step, length in intervals.items() if 1200 < step < 1440) >= 19


async def test_a_clock_that_stands_still_is_asked_less_up_to_the_bound() -> None:
    runner = alone(limit=1.0)
    assert await runner.run(0.0) == 0
    assert runner.beats == [1, 3, 7, 15, *range(31, FAR + 1, MOST_STEPS)]


@pytest.mark.parametrize("first_step", [1, 500])
async def test_a_signal_on_one_rank_is_heard_by_all_at_the_next_beat(first_step: int) -> None:
    meeting = Meeting(2)
    heard = Runner(meeting.ring(0), first_step=first_step, signal_at=first_step + 3)
    other = Runner(meeting.ring(1), first_step=first_step)
    assert await asyncio.gather(heard.run(0.001), other.run(0.001)) == [first_step + 6] * 2
    assert (heard.agreement.signal, other.agreement.signal, other.stop.signal) == (15, 15, 0)


async def test_the_end_of_the_time_is_not_a_signal() -> None:
    runner = alone(limit=0.5)
    assert runner.agreement.signal == 0
    assert await runner.run(0.05)
    assert runner.agreement.signal == 0
