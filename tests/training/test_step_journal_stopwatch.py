import pytest

from ringwide.training.step_journal import Stopwatch


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_it_counts_while_it_runs_and_not_while_it_rests(clock: Clock) -> None:
    watch = Stopwatch(clock)
    clock.now += 5
    assert watch.seconds == 0
    with watch.running():
        clock.now += 1
        assert watch.seconds == 1
        with watch.paused():
            clock.now += 10
            assert watch.seconds == 1
        clock.now += 2
        assert watch.seconds == 3
    clock.now += 20
    assert watch.seconds == 3


def test_what_was_counted_stays_after_an_error(clock: Clock) -> None:
    watch = Stopwatch(clock)

    def rest_badly() -> None:
        with watch.running():
            clock.now += 1
            with watch.paused():
                clock.now += 10
                raise OSError("full")

    with pytest.raises(OSError, match="full"):
        rest_badly()
    clock.now += 5
    assert watch.seconds == 1
    with watch.running():
        clock.now += 2
    assert watch.seconds == 3
