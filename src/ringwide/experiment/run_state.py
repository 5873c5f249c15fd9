"""Board of a run: the state of training as its nodes report it, for the view and the summary."""

import math
from collections import deque
from dataclasses import dataclass

from ringwide.experiment.config import ExperimentConfig
from ringwide.experiment.node_messages import Message
from ringwide.training.progress import Evaluation, Progress, Result, TrainingPlan, TrainingStep

RECENT_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Sums:
    """Work done in some time: since training began, or between two moments."""

    seconds: float = 0.0
    batches: int = 0
    samples: int = 0
    loss: float = 0.0  # summed over samples
    network_seconds: float = 0.0
    hidden_seconds: float = 0.0
    bytes_sent: int = 0

    def __sub__(self, before: "Sums") -> "Sums":
        return Sums(
            seconds=self.seconds - before.seconds,
            batches=self.batches - before.batches,
            samples=self.samples - before.samples,
            loss=self.loss - before.loss,
            network_seconds=self.network_seconds - before.network_seconds,
            hidden_seconds=self.hidden_seconds - before.hidden_seconds,
            bytes_sent=self.bytes_sent - before.bytes_sent,
        )

    @property
    def batches_per_second(self) -> float:
        return _ratio(self.batches, self.seconds)

    @property
    def throughput(self) -> float:
        return _ratio(self.bytes_sent, self.seconds)

    @property
    def network_share(self) -> float:
        return _ratio(self.network_seconds, self.seconds)

    @property
    def hidden_share(self) -> float:
        return _ratio(self.hidden_seconds, self.network_seconds)

    @property
    def mean_loss(self) -> float:
        return self.loss / self.samples if self.samples else math.nan


class RankTally:
    """Steps of one rank: the last one, the sums, and the sums of the last seconds."""

    def __init__(self, batch_size: int) -> None:
        self.last: TrainingStep | None = None
        self._batch_size = batch_size
        self._marks = deque([Sums()])  # sums at moments of the last seconds, oldest first

    @property
    def sums(self) -> Sums:
        return self._marks[-1]

    def add(self, progress: Progress) -> None:
        if not progress.steps:
            return
        self.last = progress.steps[-1]
        self._marks.append(self._with(progress))
        while self._marks[1].seconds <= self.sums.seconds - RECENT_SECONDS:
            self._marks.popleft()

    def recent(self) -> Sums:
        """Sums over the last seconds, as shown in the view."""
        return self.sums - self._marks[0]

    def _with(self, progress: Progress) -> Sums:
        sums, steps = self.sums, progress.steps
        return Sums(
            seconds=steps[-1].seconds,
            batches=sums.batches + sum(self._batches(step) for step in steps),
            samples=sums.samples + sum(step.samples for step in steps),
            loss=sums.loss + sum(_loss_of(step) for step in steps),
            network_seconds=sums.network_seconds + sum(step.network_seconds for step in steps),
            hidden_seconds=sums.hidden_seconds + sum(step.hidden_seconds for step in steps),
            bytes_sent=progress.bytes_sent,
        )

    def _batches(self, step: TrainingStep) -> int:
        return max(1, -(-step.samples // self._batch_size))


def _loss_of(step: TrainingStep) -> float:
    """Loss summed over samples. At the end of an epoch a rank may have no samples, and its mean loss is NaN."""
    return step.loss * step.samples if step.samples else 0.0


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


class Board:
    """State of a run, built from the messages of all ranks."""

    def __init__(self, config: ExperimentConfig, *, nodes: int | None = None) -> None:
        """`nodes`: how many nodes report here, if not all."""
        self.config = config
        self.nodes = config.nodes if nodes is None else nodes
        self.heard = 0  # number of messages
        self.plan: TrainingPlan | None = None
        self.tallies: dict[int, RankTally] = {}
        self.evaluations: list[Evaluation] = []
        self.first_not_finite: int | None = None  # first step with a loss of NaN or infinity
        self.results: dict[int, Result] = {}

    def hear(self, rank: int, message: Message) -> None:
        self.heard += 1
        match message:
            case TrainingPlan():
                self.plan = message
            case Progress():
                self._note_first_not_finite(message)
                self.tallies.setdefault(rank, RankTally(self.config.training.batch_size)).add(message)
            case Evaluation():
                if self.is_news(message):
                    self.evaluations.append(message)
            case Result():
                self.results[rank] = message

    def _note_first_not_finite(self, progress: Progress) -> None:
        """A step without samples has no loss, which is not an error."""
        for step in progress.steps:
            if not math.isfinite(step.loss) and step.samples:
                self.first_not_finite = min(step.number, self.first_not_finite or step.number)
                return

    def is_news(self, evaluation: Evaluation) -> bool:
        """Whether this evaluation is not known yet: every rank reports the same one."""
        return not self.evaluations or evaluation.step > self.evaluations[-1].step

    def has_begun(self) -> bool:
        """Whether the ring is formed and the plan known."""
        return self.plan is not None

    @property
    def is_training(self) -> bool:
        """Whether every node has made a step."""
        return len(self._last_steps()) >= self.nodes

    @property
    def step(self) -> int:
        """Step of the slowest node."""
        return min((step.number for step in self._last_steps()), default=0)

    @property
    def epoch(self) -> int:
        return min((step.epoch for step in self._last_steps()), default=0)

    @property
    def seconds(self) -> float:
        """Seconds of training, without the start."""
        return max((step.seconds for step in self._last_steps()), default=0.0)

    @property
    def done(self) -> float:
        """Share of the run that is done, from 0 to 1, by steps or by time, whichever ends first."""
        if self.plan is None:
            return 0.0
        return min(1.0, max(_part_of_steps(self.plan, self.step), _part_of_seconds(self.plan, self.seconds)))

    @property
    def seconds_left(self) -> float:
        return self.seconds * (1 - self.done) / self.done if self.done else math.inf

    @property
    def batches_per_second(self) -> float:
        return sum(tally.recent().batches_per_second for tally in self.tallies.values())

    @property
    def throughput(self) -> float:
        return sum(tally.recent().throughput for tally in self.tallies.values())

    @property
    def loss(self) -> float:
        recent = [tally.recent() for tally in self.tallies.values()]
        samples = sum(sums.samples for sums in recent)
        return sum(sums.loss for sums in recent) / samples if samples else math.nan

    def _last_steps(self) -> list[TrainingStep]:
        return [tally.last for tally in self.tallies.values() if tally.last is not None]


def _part_of_steps(plan: TrainingPlan, step: int) -> float:
    if plan.last_step is None:
        return 0.0
    return max(0, step - plan.first_step + 1) / max(1, plan.last_step - plan.first_step + 1)


def _part_of_seconds(plan: TrainingPlan, seconds: float) -> float:
    return seconds / plan.seconds if plan.seconds else 0.0
