"""Which samples in which step, from where training starts to where it ends."""

from collections.abc import Iterator
from dataclasses import dataclass

from ringwide.errors import ConfigError
from ringwide.training.config import TrainingConfig
from ringwide.training.data.shares import Share, shares, steps_per_epoch


@dataclass(frozen=True, slots=True)
class Position:
    """How far training has come: the steps made in all, and where that is in the passes over the samples."""

    step: int = 0
    epoch: int = 0
    step_in_epoch: int = 0


class Course:
    def __init__(self, config: TrainingConfig, *, samples: int, rank: int, size: int) -> None:
        self._config, self._samples, self._rank, self._size = config, samples, rank, size
        self.steps_per_epoch = steps_per_epoch(
            samples,
            batch_size=config.batch_size,
            accumulate_batches=config.accumulate_batches,
            size=size,
            drop_last=config.drop_last,
        )
        if not self.steps_per_epoch:
            needed = config.batch_size * config.accumulate_batches * size
            raise ConfigError(
                f"training.drop_last: true: a whole step needs {needed} samples (batch_size x accumulate_batches x"
                f" nodes), but there are {samples}; make the batches smaller"
            )
        self.last_step = _last_step(config, self.steps_per_epoch)

    def after(self, start: Position) -> Iterator[tuple[Position, Share]]:
        """Each share of this rank that comes after `start`, with the position that is reached by it."""
        step, epoch, first = start.step, start.epoch, start.step_in_epoch
        while True:
            for in_epoch, share in enumerate(self._shares(epoch, first), start=first + 1):
                if self.last_step is not None and step >= self.last_step:
                    return
                step += 1
                yield Position(step, epoch, in_epoch), share
            epoch, first = epoch + 1, 0

    def _shares(self, epoch: int, first: int) -> Iterator[Share]:
        return shares(
            self._samples,
            batch_size=self._config.batch_size,
            accumulate_batches=self._config.accumulate_batches,
            rank=self._rank,
            size=self._size,
            seed=self._config.seed,
            epoch=epoch,
            first=first,
            drop_last=self._config.drop_last,
        )


def _last_step(config: TrainingConfig, steps_per_epoch: int) -> int | None:
    """None: only time ends it."""
    by_epochs = None if config.epoch_limit is None else config.epoch_limit * steps_per_epoch
    return min((limit for limit in (config.steps, by_epochs) if limit is not None), default=None)
