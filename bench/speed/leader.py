"""Orders turns: round after round, size by size, every contestant once, whoever is first changes from round to round.

A turn's time is the median over its calls, and a call's time is that of the rank that took longest; so it is for all.
Who fails is out for this number of ranks, with a reason, and the others go on.
"""

import os
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from bench.speed.budget import Budget
from bench.speed.contestants import LIMIT, OURS, Contestant
from bench.speed.conversation import Message
from bench.speed.environments import PeerUnavailable
from bench.speed.limits import Probe, probes_for
from bench.speed.progress import Progress
from bench.speed.session import ContestantFailed, Session
from bench.speed.turns import calls_per_turn

Turns = dict[int, float]  # seconds by round


@dataclass(frozen=True, slots=True)
class Plan:
    ranks: Sequence[int]
    sizes: Sequence[int]
    rounds: int
    seconds: float | None = None  # when they are over, there are no more rounds


@dataclass(slots=True)
class Measured:
    """What came of it: turns by number of ranks, bytes and contestant, and of the machine by what was tried."""

    turns: dict[tuple[int, int, str], Turns] = field(default_factory=lambda: defaultdict(dict))
    probes: dict[tuple[int, int, Probe], Turns] = field(default_factory=lambda: defaultdict(dict))
    algorithms: dict[tuple[int, int, str], str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    skipped: list[dict[str, Any]] = field(default_factory=list)

    def skip(self, contestant: Contestant, ranks: int | None, reason: str) -> None:
        self.skipped.append({"contestant": contestant.name, "ranks": ranks, "reason": reason})


def measure(plan: Plan, chosen: Sequence[Contestant], progress: Progress) -> Measured:
    measured = Measured()
    able = [contestant for contestant in chosen if _has_a_home(contestant, measured, progress.say)]
    budget = Budget(plan.seconds, plan.ranks)
    for ranks in plan.ranks:
        budget.begin(ranks)
        progress.say(f"{ranks} ranks: starting {sum(one.ranks(ranks) for one in able)} processes")
        with _sessions(able, ranks, plan.sizes, measured, progress.say) as sessions:
            Field(plan, ranks, sessions, measured, progress).play(budget)
    return measured


def _has_a_home(contestant: Contestant, measured: Measured, say: Callable[[str], None]) -> bool:
    if contestant.environment is None:
        return True
    try:
        contestant.environment.make(say)
    except PeerUnavailable as error:
        measured.skip(contestant, None, str(error))
        say(f"{contestant.title} is skipped: {error}")
        return False
    return True


@contextmanager
def _sessions(
    able: Sequence[Contestant], ranks: int, sizes: Sequence[int], measured: Measured, say: Callable[[str], None]
) -> Iterator[list[Session]]:
    """All processes at once, for the length of the block."""
    all_of_them: list[Session] = []
    started: list[Session] = []
    joined: list[Session] = []
    try:
        for contestant in able:
            all_of_them.append(Session(contestant, ranks))
            with _skipping(all_of_them[-1], ranks, measured, say):
                all_of_them[-1].start()
                started.append(all_of_them[-1])
        for session in started:
            with _skipping(session, ranks, measured, say):
                _remember(session, ranks, session.join(sizes)[0], measured)
                joined.append(session)
        yield joined
    finally:
        for session in all_of_them:
            session.end()


@contextmanager
def _skipping(session: Session, ranks: int, measured: Measured, say: Callable[[str], None]) -> Iterator[None]:
    try:
        yield
    except ContestantFailed as error:
        session.end()
        measured.skip(session.contestant, ranks, str(error))
        say(f"{session.contestant.title} is skipped at {ranks} ranks: {error}")


def _remember(session: Session, ranks: int, answer: Message, measured: Measured) -> None:
    measured.versions.update(answer["versions"])
    for nbytes, algorithm in answer.get("algorithms", {}).items():
        measured.algorithms[ranks, int(nbytes), session.contestant.name] = algorithm


class Field:
    """All turns with one number of ranks."""

    def __init__(self, plan: Plan, ranks: int, sessions: list[Session], measured: Measured, progress: Progress) -> None:
        self._plan, self._ranks, self._sessions = plan, ranks, sessions
        self._measured, self._progress = measured, progress

    def play(self, budget: Budget) -> None:
        self._progress.begin_rounds()
        for number in range(self._plan.rounds):
            budget.begin_round()
            for nbytes in self._plan.sizes:
                for session in _rotated(self._sessions, number):
                    self._let(session, nbytes, number)
            self._progress.round_done(self._ranks, number)
            if number + 1 < self._plan.rounds and not budget.allows_another():
                self._progress.say(f"{self._ranks} ranks: {number + 1} rounds instead of {self._plan.rounds}, for time")
                self._progress.cut_short(self._ranks)
                break

    def _let(self, session: Session, nbytes: int, number: int) -> None:
        contestant = session.contestant
        if nbytes > contestant.largest_bytes or number >= contestant.most_rounds:
            return
        try:
            if contestant.name == LIMIT:
                self._probe(session, nbytes, number)
            else:
                answers = session.turn(nbytes, min(calls_per_turn(nbytes), contestant.most_calls))
                self._measured.turns[self._ranks, nbytes, contestant.name][number] = turn_seconds(answers)
        except ContestantFailed as error:
            self._sessions.remove(session)
            session.end()
            self._measured.skip(contestant, self._ranks, str(error))
            self._progress.say(f"{contestant.title} is out at {self._ranks} ranks: {error}")

    def _probe(self, session: Session, nbytes: int, number: int) -> None:
        algorithms = {self._measured.algorithms.get((self._ranks, nbytes, name)) for name in OURS}
        spin = self._ranks <= (os.cpu_count() or 1)
        for probe in probes_for(algorithms, self._ranks, nbytes):
            answers = session.turn(probe.nbytes, probe.calls, what=probe.what, spin=spin)
            moved = answers[0].get("moved", probe.nbytes)
            seconds = turn_seconds(answers) * probe.nbytes / moved
            self._measured.probes[self._ranks, nbytes, probe][number] = seconds


def _rotated(sessions: Sequence[Session], number: int) -> list[Session]:
    first = number % max(len(sessions), 1)
    return [*sessions[first:], *sessions[:first]]


def turn_seconds(answers: Sequence[Message]) -> float:
    """The median over calls of the slowest rank's time."""
    ranks = [answer["seconds"] for answer in answers if answer["seconds"]]
    slowest: list[float] = [max(call) for call in zip(*ranks, strict=True)]
    return statistics.median(slowest)
