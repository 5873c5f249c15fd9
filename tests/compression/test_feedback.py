"""Where errors of lossy codecs are kept between calls: borrowed, committed, given back, dropped."""

import logging

import numpy as np
import pytest

from ringwide.compression import feedback
from ringwide.compression.codecs.base import Array
from ringwide.compression.feedback import Feedback, FeedbackStore
from ringwide.tensors.bucket import Label

FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
GRADIENTS = Label("gradients", "float32[4]")


def borrowed(store: FeedbackStore, label: Label = GRADIENTS, count: int = 4) -> Feedback:
    found = store.borrow(label, count, FLOAT32)
    assert found is not None
    return found


def one_call(store: FeedbackStore, value: float, label: Label = GRADIENTS, count: int = 4) -> Array:
    """A call that succeeds and leaves this error; what it was given."""
    found = borrowed(store, label, count)
    given = found.last.copy()
    found.next[:] = value
    store.commit(found)
    return given


def test_the_first_error_is_zero() -> None:
    found = borrowed(FeedbackStore())
    assert found.last.tolist() == [0, 0, 0, 0]
    assert found.last.dtype == found.next.dtype == FLOAT32
    assert not np.may_share_memory(found.last, found.next)


def test_what_was_committed_comes_back() -> None:
    store = FeedbackStore()
    one_call(store, 1.5)
    assert one_call(store, 2.5).tolist() == [1.5] * 4
    assert one_call(store, 3.5).tolist() == [2.5] * 4
    assert one_call(store, 0.0).tolist() == [3.5] * 4


def test_each_bucket_has_its_own() -> None:
    store, other = FeedbackStore(), Label("others", "float32[4]")
    one_call(store, 1.0)
    one_call(store, 2.0, other)
    assert one_call(store, 0.0).tolist() == [1.0] * 4
    assert one_call(store, 0.0, other).tolist() == [2.0] * 4


def test_a_failed_collective_leaves_the_error_as_it_was() -> None:
    store = FeedbackStore()
    one_call(store, 1.5)
    failed = borrowed(store)
    failed.next[:] = 99.0
    store.give_back(failed)
    again = borrowed(store)
    assert again.last.tolist() == [1.5] * 4
    assert not np.may_share_memory(again.next, failed.next)  # a thread may still be writing there
    assert not np.may_share_memory(again.next, again.last)


def test_memory_of_calls_that_succeed_is_used_again() -> None:
    store = FeedbackStore()
    one_call(store, 1.0)
    one_call(store, 2.0)
    first = borrowed(store)
    memory = {first.last.ctypes.data, first.next.ctypes.data}
    store.commit(first)
    second = borrowed(store)
    assert {second.last.ctypes.data, second.next.ctypes.data} == memory


def test_an_error_that_was_paid_back_is_gone() -> None:
    store = FeedbackStore()
    one_call(store, 1.5)
    assert GRADIENTS in store
    store.drop(borrowed(store))
    assert GRADIENTS not in store
    assert list(store.items()) == []
    assert one_call(store, 0.0).tolist() == [0.0] * 4


@pytest.mark.parametrize(
    ("what", "count", "dtype"),
    [("float32[6]", 6, FLOAT32), ("float32[2, 2]", 4, FLOAT32), ("float64[4]", 4, FLOAT64)],
)
def test_other_shapes_under_the_same_name_start_from_zero_and_the_log_says_so(
    what: str, count: int, dtype: "np.dtype[np.floating]", caplog: pytest.LogCaptureFixture
) -> None:
    store = FeedbackStore()
    one_call(store, 1.5)
    with caplog.at_level(logging.WARNING, "ringwide.compression"):
        found = store.borrow(Label("gradients", what), count, dtype)
    assert found is not None
    assert (found.last.tolist(), found.last.dtype) == ([0.0] * count, dtype)
    (line,) = caplog.messages
    assert line == (f"bucket 'gradients' was float32[4] and is now {what}: the error of its codec so far is dropped")


def test_the_same_shapes_are_no_news(caplog: pytest.LogCaptureFixture) -> None:
    store = FeedbackStore()
    for _ in range(3):
        one_call(store, 1.0)
    assert caplog.messages == []


def test_two_calls_at_once_only_the_first_has_feedback_and_one_line_tells_how_to_change_that(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = FeedbackStore()
    one_call(store, 1.5)
    first = borrowed(store)
    assert store.borrow(GRADIENTS, 4, FLOAT32) is None
    assert store.borrow(GRADIENTS, 4, FLOAT32) is None
    (line,) = caplog.messages
    assert "two open calls have float32[4]" in line
    assert "allreduce(..., bucket='a name')" in line
    first.next[:] = 2.5
    store.commit(first)
    assert one_call(store, 0.0).tolist() == [2.5] * 4


@pytest.mark.parametrize("end", ["commit", "give_back", "drop"])
def test_after_any_end_the_bucket_can_be_borrowed_again(end: str) -> None:
    store = FeedbackStore()
    getattr(store, end)(borrowed(store))
    borrowed(store)


def test_what_is_not_used_for_long_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feedback, "FORGOTTEN_AFTER", 10)
    monkeypatch.setattr(feedback, "ONCE_FORGOTTEN_AFTER", 10)
    store, rare, gone = FeedbackStore(), Label("rare", "float32[4]"), Label("gone", "float32[4]")
    one_call(store, 1.0, gone)
    one_call(store, 2.0, rare)
    for _ in range(9):
        one_call(store, 3.0)
    assert one_call(store, 2.0, rare).tolist() == [2.0] * 4
    for _ in range(9):
        one_call(store, 3.0)
    assert (gone in store, rare in store, GRADIENTS in store) == (False, True, True)


def test_shapes_that_never_come_back_do_not_pile_up() -> None:
    store = FeedbackStore()
    for number in range(500):
        one_call(store, 1.0, Label(f"shape {number}", "float32[4]"))
        one_call(store, 2.0)
    assert len(list(store.items())) <= feedback.ONCE_FORGOTTEN_AFTER
    assert GRADIENTS in store


def test_a_call_that_was_undone_leaves_the_error_as_it_was() -> None:
    store = FeedbackStore()
    one_call(store, 1.0)
    found = borrowed(store)
    found.next[:] = 7.0
    store.commit(found)
    store.undo(found)
    assert dict(store.items())[GRADIENTS].tolist() == [1.0] * 4


def test_an_undo_after_another_call_has_succeeded_changes_nothing() -> None:
    store = FeedbackStore()
    found = borrowed(store)
    store.commit(found)
    one_call(store, 3.0)
    store.undo(found)
    assert dict(store.items())[GRADIENTS].tolist() == [3.0] * 4


def test_what_is_in_use_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feedback, "FORGOTTEN_AFTER", 3)
    store, slow = FeedbackStore(), Label("slow", "float32[4]")
    found = borrowed(store, slow)
    for _ in range(20):
        one_call(store, 3.0)
    found.next[:] = 7.0
    store.commit(found)
    assert dict(store.items())[slow].tolist() == [7.0] * 4


# -- checkpoints


def test_what_was_kept_can_be_kept_elsewhere() -> None:
    store, restored = FeedbackStore(), FeedbackStore()
    one_call(store, 1.5)
    one_call(restored, 9.0, Label("others", "float32[4]"))
    restored.replace({label: error.copy() for label, error in store.items()})
    assert [label for label, _ in restored.items()] == [GRADIENTS]
    assert one_call(restored, 0.0).tolist() == [1.5] * 4


def test_a_checkpoint_in_the_middle_of_a_call_has_the_error_from_before_it() -> None:
    store = FeedbackStore()
    one_call(store, 1.5)
    borrowed(store).next[:] = 99.0
    assert dict(store.items())[GRADIENTS].tolist() == [1.5] * 4


@pytest.mark.parametrize("end", ["commit", "give_back", "drop"])
def test_what_was_loaded_in_the_middle_of_a_call_outlives_the_call(end: str) -> None:
    store = FeedbackStore()
    one_call(store, 1.5)
    found = borrowed(store)
    found.next[:] = 99.0
    store.replace({GRADIENTS: np.full(4, 0.5, np.float32)})
    getattr(store, end)(found)
    assert one_call(store, 0.0).tolist() == [0.5] * 4
