"""Everything heard from the nodes of a run: what is shown while it lasts, and summed up after it."""

import math

from ringwide.experiment.config import ExperimentConfig
from ringwide.experiment.messages import Message
from ringwide.experiment.watch.tally import Tally
from ringwide.training.progress import Evaluation, Progress, Result, TrainingPlan, TrainingStep


class Board:
    def __init__(self, config: ExperimentConfig, *, nodes: int | None = None) -> None:
        """`nodes`: from how many something will be heard, if not from all."""
        self.config = config
        self.nodes = config.nodes if nodes is None else nodes
        self.heard = 0  # how many messages
        self.plan: TrainingPlan | None = None
        self.tallies: dict[int, Tally] = {}
        self.evaluations: list[Evaluation] = []
        self.first_not_finite: int | None = None  # the first step whose loss is no finite number
        self.results: dict[int, Result] = {}

    def hear(self, rank: int, message: Message) -> None:
        self.heard += 1
        match message:
            case TrainingPlan():
                self.plan = message
            case Progress():
                self._look_for_losses_that_are_not_finite(message)
                self.tallies.setdefault(rank, Tally(self.config.training.batch_size)).add(message)
            case Evaluation():
                if self.is_news(message):
                    self.evaluations.append(message)
            case Result():
                self.results[rank] = message

    def _look_for_losses_that_are_not_finite(self, progress: Progress) -> None:
        """An empty share has no loss, and nothing is wrong with that."""
        for step in progress.steps:
            if not math.isfinite(step.loss) and step.samples:
                self.first_not_finite = min(step.number, self.first_not_finite or step.number)
                return

    def is_news(self, evaluation: Evaluation) -> bool:
        """Every rank tells of it, and all the same."""
        return not self.evaluations or evaluation.step > self.evaluations[-1].step

    def has_begun(self) -> bool:
        """The nodes have found each other and know what they are about to do."""
        return self.plan is not None

    @property
    def is_training(self) -> bool:
        """Every node has made a step."""
        return len(self._last_steps()) >= self.nodes

    @property
    def step(self) -> int:
        """Of the slowest node."""
        return min((step.number for step in self._last_steps()), default=0)

    @property
    def epoch(self) -> int:
        return min((step.epoch for step in self._last_steps()), default=0)

    @property
    def seconds(self) -> float:
        """Of training, not of starting."""
        return max((step.seconds for step in self._last_steps()), default=0.0)

    @property
    def done(self) -> float:
        """How much of it is done, from 0 to 1, by whatever will end it first."""
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
