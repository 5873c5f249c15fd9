"""Shared-memory arena between two ranks on one machine: one writes payloads into its slots, the other reads them.

An arena has no name. It is a file in memory (`memfd`), and the writer passes its descriptor to the reader over their
Unix-domain socket. So nothing is left behind however the two end, and the size of /dev/shm does not matter.

Rules:
- A slot belongs to the writer until its number is sent, then to the reader until the reader releases it.
- To release slot n, the reader adds 2 to the power of n to `released`, an eventfd. The writer uses a slot again only
  when it has read so there. A slot is released once per use, so the sum tells which slots are free. The kernel's lock
  in the eventfd orders the two: the reader's reads come before the writer's next writes, on every processor.
- The first page holds one byte per slot, TAKEN or FREE. With it the reader detects a reference to a slot that the
  writer has not filled.
- The reader checks what it is given: a file of the right size, sealed, so that it cannot shrink while it is mapped, and
  an eventfd that does not block.
- Reading the eventfd costs a system call, so it is read only when no slot is known to be free. All slots are used in
  turn, and together they should fit into the cache.
"""

import fcntl
import mmap
import os
import resource
import sys
from contextlib import suppress
from typing import NamedTuple

from ringwide.errors import RemoteProtocolError

PAGE_BYTES = 4096
ARENA_BYTES = 4 * 1024 * 1024
"""About as much as is in flight between two ranks. Only the part that is used becomes memory."""
FEWEST_SLOTS, MOST_SLOTS = 4, 32  # an eventfd counts up to 2 ** 64 - 2
FREE, TAKEN = 0, 1
ARENA_DESCRIPTORS = 4
"""Descriptors of a lane beside its socket: for each direction an eventfd and the file that `mmap` keeps open."""
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class ArenaShape(NamedTuple):
    """Number and size of the slots of an arena."""

    slots: int
    slot_bytes: int

    @classmethod
    def of(cls, segment_bytes: int) -> "ArenaShape":
        slot_bytes = -(-segment_bytes // PAGE_BYTES) * PAGE_BYTES
        return cls(max(FEWEST_SLOTS, min(ARENA_BYTES // slot_bytes, MOST_SLOTS)), slot_bytes)

    @property
    def nbytes(self) -> int:
        return PAGE_BYTES + self.slots * self.slot_bytes

    def view(self, memory: mmap.mmap, slot: int, nbytes: int) -> memoryview:
        start = PAGE_BYTES + slot * self.slot_bytes
        return memoryview(memory)[start : start + nbytes]


class ArenaWriter:
    """The writer's end of an arena."""

    def __init__(self, shape: ArenaShape) -> None:
        self.shape = shape
        self._file = self.released = -1
        self._memory: mmap.mmap | None = None
        try:
            self._file = os.memfd_create("ringwide", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            self.released = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            os.ftruncate(self._file, shape.nbytes)
            fcntl.fcntl(self._file, fcntl.F_ADD_SEALS, SEALS)
            self._memory = mmap.mmap(self._file, shape.nbytes)
        except BaseException:
            self.close()
            raise
        self._states = memoryview(self._memory)[: shape.slots]
        self._free = list(range(shape.slots))

    @property
    def files(self) -> tuple[int, int]:
        """Descriptors that the reader needs: the memory and the eventfd."""
        return self._file, self.released

    def handed_over(self) -> None:
        """The reader has the descriptors. Ours of the memory is not needed any more."""
        os.close(self._file)
        self._file = -1

    def take(self) -> int | None:
        """A free slot, if there is one."""
        if not self._free:
            self._collect_released()
        if not self._free:
            return None
        slot = self._free.pop()
        self._states[slot] = TAKEN
        return slot

    def view(self, slot: int, nbytes: int) -> memoryview:
        assert self._memory is not None
        return self.shape.view(self._memory, slot, nbytes)

    def _collect_released(self) -> None:
        try:
            released = os.eventfd_read(self.released)
        except BlockingIOError:
            return
        self._free = [slot for slot in range(self.shape.slots) if released >> slot & 1]

    def close(self) -> None:
        for descriptor in (self._file, self.released):
            if descriptor >= 0:
                os.close(descriptor)
        self._file = self.released = -1
        if self._memory is not None:
            self._states.release()
            _close(self._memory)
            self._memory = None


class ArenaReader:
    """The reader's end of an arena. It owns the two descriptors from now on, even if it refuses them."""

    def __init__(self, shape: ArenaShape, file: int, released: int) -> None:
        self.shape, self._released = shape, released
        try:
            self._check(file)
            _check_eventfd(released)
            self.memory = mmap.mmap(file, shape.nbytes)
        except BaseException:
            os.close(released)
            raise
        finally:
            os.close(file)
        self._states = memoryview(self.memory)[: shape.slots]

    def _check(self, file: int) -> None:
        try:
            size, seals = os.fstat(file).st_size, fcntl.fcntl(file, fcntl.F_GET_SEALS)
        except OSError as error:
            raise RemoteProtocolError(f"what it shares is not a file in memory: {error}") from error
        if size != self.shape.nbytes:
            raise RemoteProtocolError(f"it shares {size} bytes of memory, {self.shape.nbytes} are due")
        if not seals & fcntl.F_SEAL_SHRINK:
            raise RemoteProtocolError("it shares memory that it could take away again")

    def view(self, slot: int, nbytes: int) -> memoryview:
        """The payload in a slot that the writer has just sent."""
        if slot >= self.shape.slots or nbytes > self.shape.slot_bytes or self._states[slot] != TAKEN:
            raise RemoteProtocolError(f"a payload of {nbytes} bytes in slot {slot}, where there can be none")
        return self.shape.view(self.memory, slot, nbytes)

    def release(self, slot: int) -> None:
        """Let the writer use the slot again."""
        self._states[slot] = FREE
        os.eventfd_write(self._released, 1 << slot)

    def close(self) -> None:
        if self._released >= 0:
            os.close(self._released)
            self._released = -1
            self._states.release()
            _close(self.memory)


def _check_eventfd(released: int) -> None:
    """Writing to anything else, or to one that may block, could stop this rank for as long as its peer likes."""
    try:
        kind = os.readlink(f"/proc/self/fd/{released}")
    except OSError:  # there need not be a /proc
        kind = "anon_inode:[eventfd]"
    if kind != "anon_inode:[eventfd]":
        raise RemoteProtocolError(f"what it shares to release slots is not an eventfd, but {kind!r}")
    if os.get_blocking(released):
        raise RemoteProtocolError("it shares an eventfd to release slots that may block")


def descriptors_to_spare() -> int:
    """Number of files that this process may still open."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return sys.maxsize
    try:
        return limit - len(os.listdir("/proc/self/fd"))
    except OSError:  # there need not be a /proc
        return limit


def _close(memory: mmap.mmap) -> None:
    with suppress(BufferError):  # a view of a payload is still in use: the memory is freed with the last one
        memory.close()
