"""Copies of errors: equal to the original, but without its traceback and context."""

import asyncio

import pytest

from ringwide.errors import CollectiveAborted, CollectiveMismatch, MessageMismatch, PeerLeft, RingClosed, fresh

ERRORS: list[BaseException] = [
    RingClosed("over"),
    PeerLeft(rank=2, reason="it is done"),
    CollectiveAborted(number=3, what="allreduce", by=1, reason="its task was cancelled"),
    CollectiveMismatch(number=3, rank=0, ours="barrier()", other_rank=1, theirs="reduce()"),
    MessageMismatch(tag=1, sender=0, sent="int8[1]", receiver=1, expected="int8[2]", rank=0),
    OSError(2, "No such file"),
    UnicodeDecodeError("utf-8", b"\\xff", 0, 1, "invalid start byte"),
    asyncio.CancelledError(),
    SystemExit(3),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_copy_says_the_same(error: BaseException) -> None:
    with pytest.raises(type(error)):
        raise error
    copy = fresh(error)
    assert copy is not error
    assert (type(copy), str(copy), copy.args, vars(copy)) == (type(error), str(error), error.args, vars(error))
    assert copy.__traceback__ is copy.__context__ is None
    assert getattr(copy, "code", None) == getattr(error, "code", None)


def test_a_copy_has_the_same_cause() -> None:
    cause = LookupError("before")
    with pytest.raises(RingClosed) as caught:
        raise RingClosed("over") from cause
    assert fresh(caught.value).__cause__ is cause


class OfTheUser(Exception):
    """An error that cannot be made again from its `args`."""

    def __new__(cls, where: str, *, line: int) -> "OfTheUser":
        return super().__new__(cls, f"{where}:{line}")

    def __init__(self, where: str, *, line: int) -> None:
        super().__init__(f"{where}:{line}")


def test_an_error_that_cannot_be_copied_is_the_same_without_its_traceback() -> None:
    with pytest.raises(OfTheUser) as caught:
        raise OfTheUser("there", line=3)
    assert fresh(caught.value) is caught.value
    assert caught.value.__traceback__ is caught.value.__context__ is None
