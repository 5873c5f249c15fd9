import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringwide.errors import CorruptFrame, RemoteProtocolError
from ringwide.protocol.heartbeat import HEARTBEAT_BYTES, Heartbeat, HeartbeatKind, read_heartbeat

SIZE = 5

heartbeats = st.builds(
    Heartbeat,
    kind=st.sampled_from(HeartbeatKind),
    stuck_to=st.integers(0, SIZE - 1),
    stuck_milliseconds=st.integers(0, 2**32 - 1),
    called=st.integers(0, 2**64 - 1),
    stamp=st.integers(0, 2**64 - 1),
)


@given(heartbeats)
def test_a_heartbeat_comes_back_as_it_was(heartbeat: Heartbeat) -> None:
    assert len(heartbeat.pack()) == HEARTBEAT_BYTES
    assert read_heartbeat(heartbeat.pack(), size=SIZE) == heartbeat


def test_who_is_stuck_for_weeks_is_stuck_for_the_longest_time_that_can_be_said() -> None:
    stuck = Heartbeat(HeartbeatKind.PONG, 1, 2**40, called=3, stamp=4)
    assert read_heartbeat(stuck.pack(), size=SIZE) == stuck._replace(stuck_milliseconds=2**32 - 1)


@pytest.mark.parametrize(
    ("heartbeat", "message"),
    [
        (Heartbeat(0, 0, 0, 0, 0), "of unknown kind 0"),
        (Heartbeat(3, 0, 0, 0, 0), "of unknown kind 3"),
        (Heartbeat(HeartbeatKind.PONG, SIZE, 0, 0, 0), "names rank 5, but there are only 5 ranks"),
    ],
)
def test_an_impossible_heartbeat_is_refused(heartbeat: Heartbeat, message: str) -> None:
    with pytest.raises(RemoteProtocolError, match=message):
        read_heartbeat(heartbeat.pack(), size=SIZE)


@given(st.binary(min_size=HEARTBEAT_BYTES, max_size=HEARTBEAT_BYTES))
def test_any_bytes_are_a_heartbeat_or_a_protocol_error(data: bytes) -> None:
    try:
        assert read_heartbeat(data, size=SIZE).pack() == data
    except (CorruptFrame, RemoteProtocolError):
        return
