"""Callbacks of an operation: run at once, even if all before them still wait."""

import os
import threading
from queue import SimpleQueue

import pytest

from ringwide.torch.callback_threads import CallbackThreads, in_callback_thread, run_in_thread

PATIENCE_SECONDS = 60


def test_things_that_wait_for_later_ones_do_not_keep_them_from_being_done() -> None:
    threads, steps = CallbackThreads(), [threading.Event() for _ in range(20)]
    ended = threading.Semaphore(0)

    def wait_for_the_next(number: int) -> None:
        if number + 1 < len(steps):
            assert steps[number + 1].wait(PATIENCE_SECONDS)
        steps[number].set()
        ended.release()

    for number in range(len(steps)):
        threads.run(lambda number=number: wait_for_the_next(number))  # type: ignore[misc]
    for _ in steps:
        assert ended.acquire(timeout=PATIENCE_SECONDS)


def test_threads_are_used_again() -> None:
    threads, names = CallbackThreads(), set()
    for _ in range(50):
        done = threading.Event()

        def thing(done: threading.Event = done) -> None:
            names.add(threading.current_thread())
            done.set()

        threads.run(thing)
        assert done.wait(PATIENCE_SECONDS)
    assert len(names) < 50  # now and then one is not free again yet


def test_whoever_ends_the_program_can_wait_for_them() -> None:
    threads, begun, may_end = CallbackThreads(), threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        assert may_end.wait(PATIENCE_SECONDS)

    assert threads.drain(0)
    threads.run(wait)
    assert begun.wait(PATIENCE_SECONDS)
    assert not threads.drain(0)
    may_end.set()
    assert threads.drain(PATIENCE_SECONDS)


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_forked_child_has_followers_of_its_own() -> None:
    done = threading.Event()
    run_in_thread(done.set)
    assert done.wait(PATIENCE_SECONDS)
    child = os.fork()
    if child == 0:
        there = threading.Event()
        run_in_thread(there.set)
        os._exit(0 if there.wait(PATIENCE_SECONDS) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_who_follows_knows_it_and_nobody_else_does() -> None:
    seen: SimpleQueue[bool] = SimpleQueue()
    run_in_thread(lambda: seen.put(in_callback_thread()))
    assert seen.get(timeout=PATIENCE_SECONDS)
    assert not in_callback_thread()


def test_a_finalizer_in_the_middle_of_it_can_have_something_done_too() -> None:
    """It may run anywhere, on the same thread; with a lock that is held there it would wait for itself."""
    done = threading.Semaphore(0)

    class Follows:
        def __del__(self) -> None:
            threads.run(done.release)

    class Things(SimpleQueue):  # type: ignore[type-arg]
        def put(self, thing: object, *_: object) -> None:  # type: ignore[override]
            trash.clear()
            super().put(thing)

    threads, trash = CallbackThreads(), [Follows()]
    threads._callbacks = Things()
    threads.run(done.release)
    for _ in range(2):
        assert done.acquire(timeout=PATIENCE_SECONDS)
