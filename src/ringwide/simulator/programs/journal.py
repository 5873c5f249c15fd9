"""Journal of one rank: for each call its inputs, its end, and its memory then and at the end of the program."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np

from ringwide.collectives.plan import CollectiveKind
from ringwide.compression.codecs.base import Array
from ringwide.errors import CollectiveAborted, PeerLost, RingwideError
from ringwide.simulator.programs.program import Form, Mistake, Overlap, ProgramCall, writes

_OPERATIONS = {"sum": np.add, "mean": np.add, "min": np.minimum, "max": np.maximum}
_PRIME = 8191  # a prime: inputs of different calls or ranks have nothing in common


class ProgramNumbers:
    """Memory of one call on one rank: `memory` is all that the call may write to, `arguments` what it is passed."""

    def __init__(self, call: ProgramCall, rank: int, size: int, memory: Sequence[Array] | None = None) -> None:
        self.call, self.rank, self.size = call, rank, size
        self.memory = [*memory] if memory is not None else _brought(call, rank)
        self.into: Array | None = None
        if call.into:
            dtype, count = call.tensors[0]
            share = _share(count, rank, size)
            room = size * count if call.kind is CollectiveKind.ALL_GATHER else share.stop - share.start
            self.into = np.full(room, -1, dtype)
            self.memory.append(self.into)

    def arguments(self) -> dict[str, Any]:
        """Arguments for the method of `Ring`, with this rank's mistake if it makes one."""
        call, mistake = self.call, self.call.mistakes.get(self.rank)
        if call.kind is CollectiveKind.BARRIER:
            return {}
        if mistake is Mistake.READ_ONLY:
            self.memory[0].flags.writeable = False
        given: dict[str, Any] = {_FIRST[call.kind]: self._tensors()}
        if call.op:
            given["op"] = call.op if mistake is not Mistake.OP else "median"
        if call.kind in (CollectiveKind.REDUCE, CollectiveKind.BROADCAST):
            given["root"] = call.root if mistake is not Mistake.ROOT else 99
        if self.into is not None:
            given["into"] = self.into if mistake is not Mistake.INTO else np.zeros(self.into.size + 1, self.into.dtype)
        match mistake:
            case Mistake.NOTHING:
                given[_FIRST[call.kind]] = None
            case Mistake.DTYPE:
                given[_FIRST[call.kind]] = np.zeros(3, np.complex64)
        return given

    def freeze(self) -> None:
        """Make the last tensor read-only, so that others could have been written before the failure."""
        self.memory[-1].flags.writeable = False

    def _tensors(self) -> Any:
        call, memory = self.call, self.memory
        match call.overlap:
            case Overlap.NONE:
                tensors = memory[: len(call.tensors)]
            case Overlap.TWICE:
                tensors = [memory[0], memory[0]]
            case Overlap.SHIFTED:
                tensors = [memory[0][: max(1, len(memory[0]) - 1)], memory[0][1:] if len(memory[0]) > 1 else memory[0]]
            case Overlap.RETYPED:
                tensors = [memory[0], memory[0].view(_counterpart(memory[0].dtype))]
        if call.form is Form.ONE:
            return tensors[0]
        return tensors if call.form is Form.LIST else {f"w{index}": tensor for index, tensor in enumerate(tensors)}


_FIRST = dict.fromkeys((CollectiveKind.ALLREDUCE, CollectiveKind.REDUCE, CollectiveKind.BROADCAST), "tensors")
_FIRST |= dict.fromkeys((CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER), "tensor")


def _brought(call: ProgramCall, rank: int) -> list[Array]:
    first = 1 + (97 * call.index + 1009 * rank) % _PRIME
    return [
        (np.arange(first + 7 * index, first + 7 * index + count) % _PRIME).astype(dtype)
        for index, (dtype, count) in enumerate(call.tensors)
    ]


def _counterpart(dtype: np.dtype[Any]) -> str:
    return f"{'int' if dtype.kind == 'f' else 'float'}{8 * dtype.itemsize}"


def _share(count: int, rank: int, size: int) -> slice:
    return slice(count * rank // size, count * (rank + 1) // size)


# -- expected results


def decides(call: ProgramCall, rank: int) -> bool:
    """Whether the inputs decide the result. Where memory is reduced as two dtypes, all must only have the same."""
    return call.overlap is not Overlap.RETYPED or call.kind is CollectiveKind.BROADCAST or not writes(call, rank)


def expected_memory(call: ProgramCall, rank: int, brought: Sequence[Sequence[Array]]) -> list[Array]:
    """Expected memory after a call that has succeeded. `brought`: the memory before it, by rank."""
    ours = [*brought[rank]]
    match call.kind:
        case CollectiveKind.ALLREDUCE:
            return _reduced(call, brought)
        case CollectiveKind.REDUCE:
            return _reduced(call, brought) if rank == call.root else ours
        case CollectiveKind.BROADCAST:
            return [*brought[call.root]]
        case CollectiveKind.ALL_GATHER | CollectiveKind.REDUCE_SCATTER if call.into:
            return [ours[0], np.concatenate(expected_result(call, rank, brought))]
    return ours


def expected_result(call: ProgramCall, rank: int, brought: Sequence[Sequence[Array]]) -> list[Array]:
    """Expected return value of a call that does not write into its tensors."""
    match call.kind:
        case CollectiveKind.ALL_GATHER:
            return [theirs[0] for theirs in brought]
        case CollectiveKind.REDUCE_SCATTER:
            return [_reduced(call, brought)[0][_share(call.tensors[0][1], rank, len(brought))]]
    return []


def _reduced(call: ProgramCall, brought: Sequence[Sequence[Array]]) -> list[Array]:
    tensors = [theirs[: len(call.tensors)] for theirs in brought]
    totals = [reduce(_OPERATIONS[call.op], parts) for parts in zip(*tensors, strict=True)]
    return [total / total.dtype.type(len(brought)) for total in totals] if call.op == "mean" else totals


@dataclass(frozen=True, slots=True)
class CallEnding:
    """End of a call: its result, or the plain data of its error."""

    result: tuple[Array, ...] = ()
    error: str = ""  # its class
    typed: bool = False  # an error of ringwide
    rank: int = -1  # that it names
    text: str = ""

    def __str__(self) -> str:
        return f"{self.error}: {self.text}" if self.error else "its result"


def ending_of(outcome: object) -> CallEnding:
    """End of a call from what its await returned or raised."""
    if not isinstance(outcome, BaseException):
        return CallEnding(_copied(_arrays_in(outcome)))
    rank = -1
    if isinstance(outcome, CollectiveAborted):
        rank = outcome.by
    elif isinstance(outcome, PeerLost):
        rank = outcome.rank
    return CallEnding((), type(outcome).__name__, isinstance(outcome, RingwideError), rank, str(outcome))


@dataclass(slots=True)
class JournalEntry:
    """Call of one rank. `memory` is the caller's own; the other arrays are copies."""

    memory: list[Array]
    brought: tuple[Array, ...]
    ending: CallEnding | None = None  # None: it was never awaited, or not to its end
    after: tuple[Array, ...] = ()
    last: tuple[Array, ...] = ()


@dataclass(slots=True)
class RankJournal:
    """All calls of one rank, by their index."""

    entries: dict[int, JournalEntry] = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)
    through: bool = False  # the rank has come to the end of the program

    def open(self, index: int, memory: list[Array]) -> None:
        self.entries[index] = JournalEntry(memory, _copied(memory))

    def close(self, index: int, outcome: object) -> None:
        entry = self.entries[index]
        if entry.ending is not None:
            self.complaints.append(f"call {index} ended twice: {entry.ending}, then {ending_of(outcome)}")
        entry.ending, entry.after = ending_of(outcome), _copied(entry.memory)

    def conclude(self) -> None:
        """Record what each memory holds at the end."""
        for entry in self.entries.values():
            entry.last = _copied(entry.memory)


def _copied(arrays: Sequence[Array]) -> tuple[Array, ...]:
    return tuple([array.copy() for array in arrays])


def _arrays_in(value: Any) -> list[Array]:
    if isinstance(value, np.ndarray):
        return [value]
    if isinstance(value, list | tuple):
        return [*value]
    return [*value.values()] if isinstance(value, dict) else []
