"""What must be true of a program, whatever its ranks do: compares their journals with its fates.

- A result is exact, and only there if all ranks took part. (Nobody returns a wrong number.)
- A call that nothing keeps from succeeding succeeds, on all ranks: also behind one that failed, beside others that
  fail, and if a rank leaves as soon as it is through. (Identity at the call; done means delivered.)
- An error is the caller's own mistake or cancellation, or one of ours that names who caused it.
- After an error memory holds what it held before, and it keeps that.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from ringwide.compression.codecs.base import Array
from ringwide.simulator.programs.fates import Fate, fates_of
from ringwide.simulator.programs.journal import Ending, Entry, Journal
from ringwide.simulator.programs.material import decides, expected_memory, expected_result
from ringwide.simulator.programs.program import Call, Program, SameMemory, all_steps

_CANCELLED = ("CancelledError", "TimeoutError")
_MISTAKEN = ("TypeError", "ValueError")
_STRAYING = ("CollectiveTimeout", "PeerLeft", "RingClosed")


def verdict(program: Program, journals: Sequence[Journal]) -> list[str]:
    """Everything that is wrong."""
    return list(_Verdict(program, journals).problems())


class _Verdict:
    """On one program."""

    def __init__(self, program: Program, journals: Sequence[Journal]) -> None:
        self._program, self._journals, self._fates = program, journals, fates_of(program)
        pairs = [step.calls for step in all_steps(program.steps) if isinstance(step, SameMemory)]
        self._second = {first.index: second for first, second in pairs}

    def problems(self) -> Iterator[str]:
        for rank, journal in enumerate(self._journals):
            yield from (f"rank {rank}: {complaint}" for complaint in journal.complaints)
            if not journal.through:
                yield f"rank {rank} never came to the end of the program"
        for call in self._program.calls():
            entries = [journal.entries.get(call.index) for journal in self._journals]
            for rank, entry in enumerate(entries):
                for problem in self._of_call(call, rank, entry, entries):
                    yield f"rank {rank}, {call}: {problem}"

    def _of_call(self, call: Call, rank: int, entry: Entry | None, entries: Sequence[Entry | None]) -> Iterator[str]:
        fate = self._fates[call.index]
        if entry is None:
            if rank not in fate.departed and not fate.uncounted and self._journals[rank].through:
                yield "it was never made"
        elif entry.ending is None:
            if rank not in fate.cancelling and self._journals[rank].through:
                yield "it never ended"
            yield from self._unchanged(call, rank, entry, entry.last)
        elif entry.ending.error:
            if not _explains(fate, rank, entry.ending):
                yield f"it ended with {entry.ending}"
            yield from self._unchanged(call, rank, entry, entry.after)
            yield from self._unchanged(call, rank, entry, entry.last)
        else:
            yield from self._exact(call, rank, entry, entries)

    def _exact(self, call: Call, rank: int, entry: Entry, entries: Sequence[Entry | None]) -> Iterator[str]:
        fate = self._fates[call.index]
        present = [one for one in entries if one is not None]
        if len(present) < len(entries) or fate.mistaken:
            yield "it succeeded, though not all took part"
            return
        if self._is_overwritten(call, rank):
            return
        brought = [one.brought for one in present]
        if not decides(call, rank):
            yield from self._alike(call, entry, present)
            return
        memory, result = expected_memory(call, rank, brought), expected_result(call, rank, brought)
        for held in (entry.after, entry.last):
            if not _same(held, memory):
                yield f"memory holds {_text(held)}, must be {_text(memory)}"
        if entry.ending is not None and result and not _same(entry.ending.result, _as_given(call, result)):
            yield f"it returned {_text(entry.ending.result)}, must be {_text(result)}"

    def _alike(self, call: Call, entry: Entry, entries: Sequence[Entry]) -> Iterator[str]:
        for rank, other in enumerate(entries):
            succeeded = other.ending is not None and not other.ending.error
            if succeeded and not decides(call, rank) and not _same(entry.after, other.after):
                yield f"it has {_text(entry.after)}, and rank {rank} {_text(other.after)}"

    def _unchanged(self, call: Call, rank: int, entry: Entry, held: Sequence[Array]) -> Iterator[str]:
        mine = call not in self._second.values() and not self._is_overwritten(call, rank)
        if mine and not _same(held, entry.brought):
            yield f"it did not succeed, and memory holds {_text(held)}, not {_text(entry.brought)}"

    # -- two calls with one memory

    def _is_overwritten(self, call: Call, rank: int) -> bool:
        """Has another call with the same memory succeeded after it? If not, that memory is this one's to answer for."""
        second = self._second.get(call.index)
        entry = None if second is None else self._journals[rank].entries.get(second.index)
        return entry is not None and entry.ending is not None and not entry.ending.error


def _explains(fate: Fate, rank: int, ending: Ending) -> bool:
    """Does the program give reason for this error on this rank?"""
    match ending.error:
        case error if error in _MISTAKEN:
            return rank in fate.mistaken or (error == "ValueError" and rank in fate.freezing)
        case error if error in _CANCELLED:
            return rank in fate.cancelling
        case "TensorInUse":
            return fate.shares
        case "CollectiveAborted":
            return ending.rank in fate.spoilers or fate.shares or fate.unordered
        case "CollectiveMismatch":
            return fate.unordered or fate.crooked
        case "PeerLost":
            return bool(fate.cut)
        case "PeerLeft" if not fate.uncounted:
            return bool(fate.departed)  # who comes to that error leaves too, and others may hear of that one first
        case error if error in _STRAYING:
            return fate.uncounted
    return False


def _as_given(call: Call, result: Sequence[Array]) -> list[Array]:
    return [np.concatenate(result)] if call.into else [*result]


def _same(ours: Sequence[Array], theirs: Sequence[Array]) -> bool:
    return len(ours) == len(theirs) and all(map(_identical, ours, theirs))


def _identical(one: Array, other: Array) -> bool:
    return one.dtype == other.dtype and one.tobytes() == other.tobytes()


def _text(arrays: Sequence[Array]) -> str:
    return ", ".join(f"{array.ravel()[:4]}" for array in arrays)
