"""Operations on half precision that is summed in float32.

Inputs and totals are words of two bytes, in the bucket, which may be the caller's own memory, and on their way. Only a
sum of several ranks on its way to the owner of the total has four bytes for each number. The owner rounds the total,
once. So the bits are those of a sum that is carried in float32 from the start, for half to three quarters of the bytes.
"""

import numpy as np

from ringwide.collectives.bucket_operation import (
    RELAYED_LIMIT_BYTES,
    BucketTask,
    LaneLike,
    Operation,
)
from ringwide.collectives.single_segment import SingleSegmentOperation
from ringwide.compression.codecs.base import Array
from ringwide.protocol.instruction import Relay
from ringwide.tensors.bucket import Bucket, bytes_of

WIDE = np.dtype(np.float32)


def numbers_in(payload: memoryview, numbers: Bucket, count: int) -> Array:
    """The `count` numbers of a payload, which are words or, in a partial sum, float32."""
    return np.frombuffer(payload, WIDE if len(payload) == count * WIDE.itemsize else numbers.ours.dtype)


class HalfOperation(Operation):
    """Executes one machine on words. Sums are in memory of their own until they are sent or finished."""

    def __init__(self, task: BucketTask) -> None:
        super().__init__(task)
        self._itemsize = task.numbers.ours.itemsize
        self._sums: dict[int, Array] = {}  # by segment
        self._spare: Array = np.empty(0, WIDE)

    def _raw_bytes(self, segment: int, hop: int) -> int:
        words = self._segment_bytes(segment)
        return words // self._itemsize * WIDE.itemsize if self._machine.is_partial(hop) else words

    def _combine(self, segment: int, payload: memoryview, arrival_first: bool) -> None:
        value = self._words(segment)
        arrival = numbers_in(payload, self._numbers, value.size)
        total = self._sums.get(segment)
        if total is None:
            total = self._sums[segment] = self._memory(value.size)
        else:
            value = total
        if arrival_first:
            self._numbers.combine(arrival, value, total)
        else:
            self._numbers.combine(value, arrival, total)

    def _memory(self, count: int) -> Array:
        """Memory for a sum, if possible that of the last one: fresh memory costs more than adding."""
        memory, self._spare = self._spare, self._spare[:0]
        return memory[:count] if memory.size >= count else np.empty(count, WIDE)

    def _finish(self, segment: int) -> None:
        words, total = self._words(segment), self._sums.pop(segment, None)
        if total is None:  # alone in the ring
            assert self._numbers.halves is not None
            total = self._memory(words.size)
            self._numbers.halves.widen(words, total)
        self._snapshot.save(segment)
        self._numbers.complete(total, words)
        self._spare = total

    def _outgoing(self, segment: int) -> memoryview:
        total = self._sums.pop(segment, None)
        return self._value(segment) if total is None else bytes_of(total)

    def _relay(self, segment: int, payload: memoryview, lane: LaneLike | None, relay: Relay) -> None:
        """Add our numbers to the sum on its way, as float32, into the memory that the next rank reads or else into the
        lane's scratch. Too many that wait to leave have memory of their own: in the bucket there is no room for them.
        """
        words = self._words(segment)
        nbytes = words.size * WIDE.itemsize
        scratch = None if lane is None or self._unsent * nbytes >= RELAYED_LIMIT_BYTES else lane.scratch
        arrival, arrived = numbers_in(payload, self._numbers, words.size), None
        room = self._links[relay.peer].reserve_bulk(nbytes, stripe=segment)
        if room is not None:
            onward = room
        elif scratch is None:
            onward = memoryview(bytearray(nbytes))
        else:
            arrived = scratch.lend()  # the arrival may lie there, and the sum has another length
            onward = scratch.take(nbytes)
        self._numbers.combine(arrival, words, np.frombuffer(onward, WIDE))
        if room is not None:
            self._send_reserved(segment, nbytes, relay)
        elif scratch is None or arrived is None:
            self._send(segment, onward, relay.hop, relay.peer, self)
        else:
            self._send_from_scratch(segment, onward, scratch, relay)
            scratch.give_back(arrived)

    def _words(self, segment: int) -> Array:
        first, last = self._bounds[segment]
        return self._numbers.ours[first:last]


class SingleHalfOperation(SingleSegmentOperation):
    """Executes the schedule of a small bucket of words."""

    _sum: Array | None = None

    def _bytes_at(self, hop: int) -> int:
        return self._numbers.ours.size * WIDE.itemsize if hop in self._schedule.partial_hops else len(self._bytes)

    def _combine(self, payload: memoryview) -> None:
        words = self._numbers.ours
        arrival = numbers_in(payload, self._numbers, words.size)
        if self._sum is None:
            self._sum = np.empty(words.size, WIDE)
            self._numbers.combine(words, arrival, self._sum)
        else:
            self._numbers.combine(self._sum, arrival, self._sum)

    def _finish(self) -> None:
        words, total = self._numbers.ours, self._sum
        if total is None:  # alone in the ring
            assert self._numbers.halves is not None
            total = np.empty(words.size, WIDE)
            self._numbers.halves.widen(words, total)
        self._numbers.complete(total, words)
        self._sum = None

    def _outgoing(self) -> memoryview:
        total, self._sum = self._sum, None
        return self._bytes if total is None else bytes_of(total)
