import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringwide.errors import CorruptFrame, RemoteProtocolError
from ringwide.protocol.heartbeat import SIGN_BYTES, Sign, SignKind, read_sign

SIZE = 5

signs = st.builds(
    Sign,
    kind=st.sampled_from(SignKind),
    stuck_to=st.integers(0, SIZE - 1),
    stuck_milliseconds=st.integers(0, 2**32 - 1),
    called=st.integers(0, 2**64 - 1),
    stamp=st.integers(0, 2**64 - 1),
)


@given(signs)
def test_a_sign_comes_back_as_it_was(sign: Sign) -> None:
    assert len(sign.pack()) == SIGN_BYTES
    assert read_sign(sign.pack(), size=SIZE) == sign


def test_who_is_stuck_for_weeks_is_stuck_for_the_longest_time_that_can_be_said() -> None:
    stuck = Sign(SignKind.ANSWER, 1, 2**40, called=3, stamp=4)
    assert read_sign(stuck.pack(), size=SIZE) == stuck._replace(stuck_milliseconds=2**32 - 1)


@pytest.mark.parametrize(
    ("sign", "message"),
    [
        (Sign(0, 0, 0, 0, 0), "of kind 0"),
        (Sign(3, 0, 0, 0, 0), "of kind 3"),
        (Sign(SignKind.ANSWER, SIZE, 0, 0, 0), "speaks of rank 5, where there are 5"),
    ],
)
def test_an_impossible_sign_is_refused(sign: Sign, message: str) -> None:
    with pytest.raises(RemoteProtocolError, match=message):
        read_sign(sign.pack(), size=SIZE)


@given(st.binary(min_size=SIGN_BYTES, max_size=SIGN_BYTES))
def test_any_bytes_are_a_sign_or_a_protocol_error(data: bytes) -> None:
    try:
        assert read_sign(data, size=SIZE).pack() == data
    except (CorruptFrame, RemoteProtocolError):
        return
