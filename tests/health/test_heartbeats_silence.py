"""Silence: ranks that are silent for too long, without a clock."""

from ringwide.health.heartbeats import Silence

SUSPECT, BEAT = 10.0, 0.5


def silence_of(*peers: int) -> Silence:
    return Silence(peers, suspect_after_seconds=SUSPECT, beat_seconds=BEAT)


def test_silence_begins_when_somebody_begins_to_wait() -> None:
    """However long ago anything was heard: nobody was asked."""
    silence = silence_of(1, 2)
    silence.begin(1000.0)
    assert silence.broken_by(1009.9) == []
    assert silence.ends_at() == 1010.0


def test_whoever_is_heard_of_is_not_silent() -> None:
    silence = silence_of(1, 2)
    silence.begin(0.0)
    silence.hear(1, 8.0)
    assert silence.broken_by(10.0) == [2]
    assert silence.broken_by(18.0) == [1]


def test_it_is_told_once_and_again_after_as_long() -> None:
    silence = silence_of(1)
    silence.begin(0.0)
    assert silence.broken_by(10.0) == [1]
    assert silence.broken_by(10.1) == []
    assert silence.broken_by(20.0) == [1]


def test_those_who_are_nearly_as_silent_are_told_with_the_first() -> None:
    silence = silence_of(1, 2, 3)
    silence.begin(0.0)
    silence.hear(2, 2 * BEAT)
    silence.hear(3, 2 * BEAT + 0.1)
    assert silence.broken_by(10.0) == [1, 2]


def test_time_in_which_we_did_not_run_is_nobodys_silence() -> None:
    silence = silence_of(1, 2)
    silence.begin(0.0)
    silence.forgive(50.0, 45.0)
    assert silence.broken_by(50.0) == []
    assert silence.ends_at() == 55.0


def test_nobody_is_heard_of_in_the_future() -> None:
    """Rank 1 was heard of after we had stood still, before that was noticed."""
    silence = silence_of(1)
    silence.begin(0.0)
    silence.hear(1, 50.0)
    silence.forgive(50.0, 45.0)
    assert silence.ends_at() == 60.0


def test_one_that_has_gone_is_not_waited_for() -> None:
    silence = silence_of(1, 2)
    silence.begin(0.0)
    silence.forget(1)
    silence.hear(1, 5.0)
    assert silence.broken_by(10.0) == [2]
    silence.forget(2)
    assert silence.broken_by(100.0) == []
