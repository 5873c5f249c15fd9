"""World of a case: where it runs, and how a function becomes a case."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class World:
    """One rank's view of the group that a case is played in."""

    rank: int
    size: int
    backend: str
    device: torch.device = field(default=CPU)

    @property
    def ranks(self) -> range:
        return range(self.size)

    def full(self, value: float, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.full(shape, value, dtype=dtype, device=self.device)

    def mine(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """What this rank brings in most cases: its number plus one, everywhere."""
        return self.full(self.rank + 1, *shape, dtype=dtype)

    @property
    def total(self) -> int:
        """The sum of what all ranks bring in most cases."""
        return self.size * (self.size + 1) // 2


Play = Callable[[World], None]


@dataclass(slots=True)
class Family:
    """The cases of one file, by name."""

    name: str
    cases: dict[str, Play] = field(default_factory=dict)

    def case(self, play: Play) -> Play:
        self.add(play.__name__.replace("_", " "), play)
        return play

    def add(self, name: str, play: Play) -> None:
        full_name = f"{self.name}: {name}"
        assert full_name not in self.cases, full_name
        self.cases[full_name] = play


def same(actual: torch.Tensor, expected: torch.Tensor, what: str = "") -> None:
    """To the bit, with dtype and shape; for numbers that every dtype can hold."""
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True, msg=lambda text: f"{what} {text}")


@contextmanager
def group_of(ranks: list[int]) -> Iterator[dist.ProcessGroup]:
    """A new group, which every rank of the world has to make, even if it is not in it."""
    group = dist.new_group(ranks)
    try:
        yield group
    finally:
        if group is not dist.GroupMember.NON_GROUP_MEMBER:
            dist.destroy_process_group(group)
