"""Memory that two ranks on one machine share: one writes payloads into its slots, the other reads them there.

An arena has no name: it is a file in memory (`memfd`) that the writer hands to the reader over their Unix-domain
socket. So nothing is left behind, whatever ends the two, and the size of /dev/shm does not matter.

Rules:
- A slot belongs to the writer until its number is sent, then to the reader until that releases it.
- Who releases slot n adds 2 to the power of n to the `bell`, an eventfd, and the writer uses a slot again only when it
  has heard of it there: each slot is released once, so the sum tells which. The kernel's lock in the bell orders the
  two: what the reader has read is read before the writer writes again, on every processor.
- The first page holds one byte a slot, TAKEN or FREE. By it the reader knows a reference to a slot that is not its own.
- The reader checks what it is handed: the right size, and sealed, so that it cannot shrink below the reader's feet.
- The bell costs a system call, so it is heard only when no slot is known to be free: all slots are used in turn, and
  together they should fit into the cache.
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
"""About as much as waits between two ranks; only what is used of it becomes memory."""
FEWEST_SLOTS, MOST_SLOTS = 4, 32  # an eventfd counts up to 2 ** 64 - 2
FREE, TAKEN = 0, 1
ARENA_DESCRIPTORS = 4
"""What a lane takes beside its socket: a bell and, inside of `mmap`, a file for each direction."""
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class ArenaShape(NamedTuple):
    """How many slots an arena has, and how large they are."""

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
    """The writer's end."""

    def __init__(self, shape: ArenaShape) -> None:
        self.shape = shape
        self._file = self.bell = -1
        self._memory: mmap.mmap | None = None
        try:
            self._file = os.memfd_create("ringwide", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            self.bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
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
        """What the reader needs."""
        return self._file, self.bell

    def handed_over(self) -> None:
        """The reader has the files. Ours of the memory is not needed any more."""
        os.close(self._file)
        self._file = -1

    def take(self) -> int | None:
        """A free slot, if there is one."""
        if not self._free:
            self._listen()
        if not self._free:
            return None
        slot = self._free.pop()
        self._states[slot] = TAKEN
        return slot

    def view(self, slot: int, nbytes: int) -> memoryview:
        assert self._memory is not None
        return self.shape.view(self._memory, slot, nbytes)

    def _listen(self) -> None:
        try:
            released = os.eventfd_read(self.bell)
        except BlockingIOError:
            return
        self._free = [slot for slot in range(self.shape.slots) if released >> slot & 1]

    def close(self) -> None:
        for descriptor in (self._file, self.bell):
            if descriptor >= 0:
                os.close(descriptor)
        self._file = self.bell = -1
        if self._memory is not None:
            self._states.release()
            _close(self._memory)
            self._memory = None


class ArenaReader:
    """The reader's end. It owns the two files from now on, also if it refuses them."""

    def __init__(self, shape: ArenaShape, file: int, bell: int) -> None:
        self.shape, self._bell = shape, bell
        try:
            self._check(file)
            self.memory = mmap.mmap(file, shape.nbytes)
        except BaseException:
            os.close(bell)
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
        """The payload in a slot that we were just given."""
        if slot >= self.shape.slots or nbytes > self.shape.slot_bytes or self._states[slot] != TAKEN:
            raise RemoteProtocolError(f"a payload of {nbytes} bytes in slot {slot}, where there can be none")
        return self.shape.view(self.memory, slot, nbytes)

    def release(self, slot: int) -> None:
        """It may be written to again."""
        self._states[slot] = FREE
        os.eventfd_write(self._bell, 1 << slot)

    def close(self) -> None:
        if self._bell >= 0:
            os.close(self._bell)
            self._bell = -1
            self._states.release()
            _close(self.memory)


def descriptors_to_spare() -> int:
    """How many files this process may still open."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return sys.maxsize
    try:
        return limit - len(os.listdir("/proc/self/fd"))
    except OSError:  # there need not be a /proc
        return limit


def _close(memory: mmap.mmap) -> None:
    with suppress(BufferError):  # somebody still looks at a payload: the memory goes when nobody does
        memory.close()
