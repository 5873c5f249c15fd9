"""Scratch: memory in which payloads land before they are added."""

from ringwide.transport.lane_buffers import Scratch


def test_it_is_the_same_memory_again_and_grows() -> None:
    scratch = Scratch()
    scratch.take(100)[0] = 42
    assert scratch.take(50)[0] == 42
    assert len(scratch.take(50)) == 50
    assert len(scratch.take(1000)) == 1000


def test_what_is_lent_is_left_alone_until_it_is_given_back() -> None:
    scratch = Scratch()
    scratch.take(10)[0] = 42
    lent = scratch.lend()
    scratch.take(10)[0] = 1
    assert lent[0] == 42
    scratch.give_back(lent)
    scratch.lend()
    assert scratch.take(10)[0] == 42
