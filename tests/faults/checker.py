"""Reads what all ranks have written down, and says what is wrong with it.

Rules, for every call of every run:
- A rank that returned has the exact sum, and every rank that returned has the same.
- A rank that raised has what it had before.
- Nobody returns from a call to which ranks brought different things.
- Every rank that was there to the end has written down how the call ended.

`python -m tests.faults.checker DIRECTORY` checks histories that were kept.
"""

import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

from tests.faults.history import BufferPool, Entry
from tests.faults.known import digest_of_input, digest_of_sum

RESULT_OF_ALL = {"allreduce"}


def complaints(entries: Iterable[Entry], gone: Collection[int] = ()) -> list[str]:
    """What is wrong with one run. `gone` are the ranks that need not have an end, as they were killed."""
    by_call: dict[int, list[Entry]] = defaultdict(list)
    for entry in entries:
        by_call[entry.call].append(entry)
    return [complaint for _, call in sorted(by_call.items()) for complaint in _of_call(call, gone)]


def _of_call(entries: Sequence[Entry], gone: Collection[int]) -> Iterator[str]:
    for entry in entries:
        yield from (f"{_name(entry)}: {complaint}" for complaint in _of_entry(entry))
    returned = [entry for entry in entries if entry.returned]
    if len({entry.after for entry in returned if entry.kind in RESULT_OF_ALL}) > 1:
        yield f"{_name(returned[0])}: results differ: { ({entry.rank: entry.after for entry in returned}) }"
    if returned and len({entry.what for entry in entries}) > 1:
        yield f"{_name(returned[0])}: returned, though ranks called { ({entry.rank: entry.what for entry in entries}) }"
    wrote = [entry.rank for entry in entries]
    if len(wrote) > len(set(wrote)):
        yield f"{_name(entries[0])}: a rank has two ends of one call: {sorted(wrote)}"
    if returned and (silent := set(entries[0].members) - set(wrote) - set(gone)):
        yield f"{_name(returned[0])}: ranks {sorted(silent)} have written no end of it"


def _of_entry(entry: Entry) -> Iterator[str]:
    if entry.count and entry.before != digest_of_input(entry.rank, entry.count, entry.weight, entry.dtype):
        yield "it did not begin with the numbers it should bring"
    if entry.returned and entry.kind == "allreduce":
        if entry.op != "sum":
            yield f"returned the {entry.op}, of which nothing is known"
        elif entry.after != digest_of_sum(entry.members, entry.count, entry.weight, entry.dtype):
            yield "WRONG SUM"
    elif not entry.returned and entry.after != entry.before:
        yield f"raised {entry.outcome}, but its tensor is not what it was"


def _name(entry: Entry) -> str:
    return f"run {entry.run}, call {entry.call} ({entry.kind} of {entry.count} {entry.dtype}), rank {entry.rank}"


def main(words: list[str]) -> int:
    by_run: dict[str, list[Entry]] = defaultdict(list)
    for entry in BufferPool(Path(words[0])).news():
        by_run[entry.run].append(entry)
    everyone = range(64)  # who was killed is not in the histories
    found = [complaint for entries in by_run.values() for complaint in complaints(entries, gone=everyone)]
    print("\n".join(found))
    print(f"{sum(map(len, by_run.values()))} calls of {len(by_run)} runs, {len(found)} complaints")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
