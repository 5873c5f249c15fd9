"""Shared-memory arenas: ownership of slots, and the memory that is refused."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ringwide.errors import RemoteProtocolError
from ringwide.transport.shm_arena import (
    ARENA_DESCRIPTORS,
    FEWEST_SLOTS,
    FREE,
    MOST_SLOTS,
    PAGE_BYTES,
    SEALS,
    ArenaReader,
    ArenaShape,
    ArenaWriter,
    descriptors_to_spare,
)

SHAPE = ArenaShape(3, 2 * PAGE_BYTES)


@contextmanager
def both_ends(shape: ArenaShape = SHAPE) -> Iterator[tuple[ArenaWriter, ArenaReader]]:
    outgoing = ArenaWriter(shape)
    incoming = ArenaReader(shape, *map(os.dup, outgoing.files))
    outgoing.handed_over()
    try:
        yield outgoing, incoming
    finally:
        outgoing.close()
        incoming.close()


def take(outgoing: ArenaWriter) -> int:
    slot = outgoing.take()
    assert slot is not None
    return slot


def test_what_one_end_writes_the_other_reads() -> None:
    with both_ends() as (outgoing, incoming):
        for payload in (b"first", b"second", b"third"):
            slot = take(outgoing)
            outgoing.view(slot, len(payload))[:] = payload
            assert bytes(incoming.view(slot, len(payload))) == payload


def test_slots_do_not_overlap() -> None:
    with both_ends() as (outgoing, incoming):
        slots = [take(outgoing) for _ in range(SHAPE.slots)]
        for slot in slots:
            outgoing.view(slot, SHAPE.slot_bytes)[:] = bytes([slot + 1]) * SHAPE.slot_bytes
        for slot in slots:
            assert set(incoming.view(slot, SHAPE.slot_bytes)) == {slot + 1}


def test_a_slot_comes_back_when_it_was_released_and_not_before() -> None:
    with both_ends() as (outgoing, incoming):
        taken = {take(outgoing) for _ in range(SHAPE.slots)}
        assert taken == set(range(SHAPE.slots))
        assert outgoing.take() is None
        incoming.release(1)
        assert outgoing.take() == 1
        assert outgoing.take() is None
        incoming.release(2)
        incoming.release(0)
        assert {take(outgoing), take(outgoing)} == {0, 2}
        assert outgoing.take() is None


def test_only_the_eventfd_tells_that_a_slot_is_free() -> None:
    """Memory alone may be seen in another order than it was written."""
    with both_ends() as (outgoing, incoming):
        for _ in range(SHAPE.slots):
            take(outgoing)
        incoming._states[0] = FREE
        incoming.release(2)
        assert outgoing.take() == 2
        assert outgoing.take() is None


@pytest.mark.parametrize(("slot", "nbytes"), [(0, 1), (SHAPE.slots, 1), (2, SHAPE.slot_bytes + 1), (2**32 - 1, 1)])
def test_a_reference_to_what_is_not_there_is_an_error(slot: int, nbytes: int) -> None:
    with both_ends() as (outgoing, incoming):
        assert outgoing.take() == 2
        with pytest.raises(RemoteProtocolError, match=f"{nbytes} bytes in slot {slot}, where there can be none"):
            incoming.view(slot, nbytes)


def test_the_same_payload_cannot_be_referred_to_twice() -> None:
    with both_ends() as (outgoing, incoming):
        slot = take(outgoing)
        incoming.release(slot)
        with pytest.raises(RemoteProtocolError):
            incoming.view(slot, 1)


@contextmanager
def handed(file: int) -> Iterator[tuple[int, int]]:
    """A file and an eventfd, as a peer might pass them. Whoever refuses them must close them."""
    before = set(os.listdir("/proc/self/fd"))
    yield file, os.eventfd(0)
    assert set(os.listdir("/proc/self/fd")) <= before, "what was refused is still open"


def memory(nbytes: int) -> int:
    file = os.memfd_create("of somebody", os.MFD_ALLOW_SEALING)
    os.ftruncate(file, nbytes)
    return file


def test_memory_that_could_be_taken_away_is_refused() -> None:
    with handed(memory(SHAPE.nbytes)) as files, pytest.raises(RemoteProtocolError, match="could take away again"):
        ArenaReader(SHAPE, *files)


@pytest.mark.parametrize("nbytes", [0, SHAPE.nbytes - 1, SHAPE.nbytes + PAGE_BYTES])
def test_memory_of_another_size_is_refused(nbytes: int) -> None:
    with handed(memory(nbytes)) as files, pytest.raises(RemoteProtocolError, match=f"shares {nbytes} bytes of memory"):
        ArenaReader(SHAPE, *files)


def test_what_is_no_memory_is_refused() -> None:
    reading, writing = os.pipe()
    os.close(writing)
    with handed(reading) as files, pytest.raises(RemoteProtocolError, match="is not a file in memory"):
        ArenaReader(SHAPE, *files)


def sealed_memory() -> int:
    file = memory(SHAPE.nbytes)
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, SEALS)
    return file


def test_an_eventfd_that_may_block_is_refused() -> None:
    with handed(sealed_memory()) as files, pytest.raises(RemoteProtocolError, match="may block"):
        ArenaReader(SHAPE, *files)


def test_what_is_no_eventfd_is_refused() -> None:
    before = set(os.listdir("/proc/self/fd"))
    reading, writing = os.pipe2(os.O_NONBLOCK)
    os.close(reading)
    with pytest.raises(RemoteProtocolError, match="not an eventfd"):
        ArenaReader(SHAPE, sealed_memory(), writing)
    assert set(os.listdir("/proc/self/fd")) == before


def test_nothing_is_left_open() -> None:
    before = set(os.listdir("/proc/self/fd"))
    with both_ends() as (outgoing, _):
        take(outgoing)
        assert set(os.listdir("/proc/self/fd")) > before
    assert set(os.listdir("/proc/self/fd")) == before


def test_a_view_of_a_payload_outlives_the_arena() -> None:
    with both_ends() as (outgoing, incoming):
        slot = take(outgoing)
        outgoing.view(slot, 4)[:] = b"kept"
        view = incoming.view(slot, 4)
    assert bytes(view) == b"kept"


@pytest.mark.parametrize("segment_bytes", [1, 4096, 4097, 65536, 2**20, 2**26])
def test_every_segment_fits_into_a_slot(segment_bytes: int) -> None:
    shape = ArenaShape.of(segment_bytes)
    assert shape.slot_bytes >= segment_bytes
    assert shape.slot_bytes % PAGE_BYTES == 0
    assert FEWEST_SLOTS <= shape.slots <= MOST_SLOTS


def test_what_is_open_is_not_to_spare() -> None:
    before = descriptors_to_spare()
    with both_ends():
        assert descriptors_to_spare() == before - ARENA_DESCRIPTORS
    assert descriptors_to_spare() == before
