"""What came of the runs of a row."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tests.faults.rank import COMPLAINT, Answer

ERROR = "error"
"""The time until the last rank knew."""


@dataclass(slots=True)
class Run:
    """One run: what was wrong, what each rank raised, and how long after the fault."""

    complaints: list[str] = field(default_factory=list)
    errors: dict[int, Any] = field(default_factory=dict)
    lines: dict[int, list[str]] = field(default_factory=dict)
    times: dict[str, float] = field(default_factory=dict)  # from the fault to what is named
    notes: Counter[str] = field(default_factory=Counter)

    def complain(self, complaint: str) -> None:
        self.complaints.append(complaint)

    def hear(self, rank: int, answer: Answer) -> None:
        self.lines.setdefault(rank, []).extend(answer["lines"])
        for line in answer["lines"]:
            if line.startswith(COMPLAINT):
                self.complain(f"rank {rank}: {line}")

    def since(self, moment: float, ranks: list[int]) -> None:
        """The time from the fault to the last error of these ranks."""
        ends = [self.errors[rank]["ended"] for rank in ranks if rank in self.errors]
        self.times[ERROR] = max(ends, default=moment) - moment

    def must_be(self, ranks: list[int], outcomes: set[str], lost: int | None = None) -> None:
        """Every one of these ranks has raised one of these, and named that rank."""
        for rank in ranks:
            end = self.errors.get(rank)
            if end is None:
                continue  # a complaint already
            self.notes[end["outcome"]] += 1
            if end["outcome"] not in outcomes:
                self.complain(f"rank {rank} raised {end['outcome']}: {end['words']}")
            elif lost is not None and end["lost"] != lost:
                self.complain(f"rank {rank} names rank {end['lost']} instead of {lost}: {end['words']}")


@dataclass(frozen=True, slots=True)
class Bar:
    """A share of the runs has to be through in so many seconds."""

    share: float
    seconds: float
    of: str = ERROR
    unit: str = "s"

    def __str__(self) -> str:
        what = "" if self.of == ERROR else f" {self.of}"
        return f"{'all' if self.share == 1 else f'{self.share:.0%}'}{what} < {self.seconds:g} {self.unit}"


@dataclass(slots=True)
class Tally:
    """All runs of a row."""

    name: str
    bars: tuple[Bar, ...]
    runs: list[Run] = field(default_factory=list)
    more: int = 0  # runs of which is only known that they were good

    @property
    def count(self) -> int:
        return len(self.runs) + self.more

    @property
    def good(self) -> int:
        return sum(not run.complaints for run in self.runs) + self.more

    @property
    def complaints(self) -> list[str]:
        return [complaint for run in self.runs for complaint in run.complaints]

    def times(self, of: str = ERROR) -> list[float]:
        return sorted(run.times[of] for run in self.runs if of in run.times)

    @property
    def notes(self) -> Counter[str]:
        return sum((run.notes for run in self.runs), Counter())

    def quantile(self, share: float, of: str = ERROR) -> float:
        """The time within which that share of the runs was through."""
        times = self.times(of)
        return times[max(0, -(-int(share * 10_000) * len(times) // 10_000) - 1)] if times else 0.0

    @property
    def kept(self) -> bool:
        """Every run was good."""
        return self.good == self.count

    @property
    def met(self) -> bool:
        return self.kept and all(self.quantile(bar.share, bar.of) <= bar.seconds for bar in self.bars)
