"""Two ranks of a group that are threads, with a store in memory."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from ringwide.torch.process_group import RingProcessGroup
from ringwide.torch.work import RingWork

Operation = Callable[[RingProcessGroup], RingWork]


def in_both(act: Callable[[RingProcessGroup], Any], groups: list[RingProcessGroup]) -> list[Any]:
    """What it returns for each, or the error that it raises."""

    def outcome(group: RingProcessGroup) -> Any:
        try:
            return act(group)
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(groups)) as threads:
        return list(threads.map(outcome, groups))


def outcomes(groups: list[RingProcessGroup], *operations: Operation) -> list[Any]:
    """What waiting for it raises on each rank, or None. One operation is that of all ranks."""
    chosen = operations * 2 if len(operations) == 1 else operations
    works = [operation(group) for group, operation in zip(groups, chosen, strict=True)]
    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(error_of, works))


def error_of(work: RingWork) -> Exception | None:
    try:
        work.wait()
    except Exception as error:
        return error
    return None


def require_right_sums(groups: list[RingProcessGroup]) -> None:
    """Of two operations: none is taken for the one before or after it."""
    tensors = {group: [torch.tensor([step + group.rank() + 1.0]) for step in (10, 20)] for group in groups}
    for step in range(2):
        assert outcomes(groups, lambda group: group.allreduce([tensors[group][step]])) == [None, None]  # noqa: B023
    assert {tuple(map(float, own)) for own in tensors.values()} == {(23.0, 43.0)}
