"""Journal of a rank's steps: collects them until they are reported, and sums them up for the result."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import nan
from typing import Any, Protocol

import torch

from ringwide.training.progress import Progress, TrainingStep


class Stopwatch:
    """Time of training, without pauses for checkpoints and evaluation."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._before = clock, 0.0
        self._since: float | None = None

    @property
    def seconds(self) -> float:
        return self._before + (0.0 if self._since is None else self._clock() - self._since)

    @contextmanager
    def running(self) -> Iterator[None]:
        self._since = self._clock()
        try:
            yield
        finally:
            self._before, self._since = self.seconds, None

    @contextmanager
    def paused(self) -> Iterator[None]:
        self._before, self._since = self.seconds, None
        try:
            yield
        finally:
            self._since = self._clock()


class LinkSource(Protocol):
    """Statistics of the connections to one peer. `sent` tells raw and wire bytes by codec."""

    @property
    def peer(self) -> int: ...
    @property
    def bytes_sent(self) -> int: ...
    @property
    def sent(self) -> Sequence[Any]: ...


class TrafficSource(Protocol):
    """Statistics of a ring since it was joined."""

    @property
    def bytes_received(self) -> int: ...
    @property
    def codec_seconds(self) -> float: ...
    @property
    def links(self) -> Sequence[LinkSource]: ...


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes sent and received. A difference of two is the traffic between them."""

    bytes_to: Mapping[int, int] = field(default_factory=dict)  # sent, by peer
    bytes_received: int = 0
    raw_bytes: int = 0  # of segments before encoding
    wire_bytes: int = 0  # of the same segments as sent
    codec_seconds: float = 0.0

    @property
    def bytes_sent(self) -> int:
        return sum(self.bytes_to.values())

    @property
    def compression_ratio(self) -> float:
        return self.raw_bytes / self.wire_bytes if self.wire_bytes else 1.0

    def __sub__(self, before: "Traffic") -> "Traffic":
        return Traffic(
            bytes_to={peer: sent - before.bytes_to.get(peer, 0) for peer, sent in self.bytes_to.items()},
            bytes_received=self.bytes_received - before.bytes_received,
            raw_bytes=self.raw_bytes - before.raw_bytes,
            wire_bytes=self.wire_bytes - before.wire_bytes,
            codec_seconds=self.codec_seconds - before.codec_seconds,
        )


def traffic_of(statistics: TrafficSource) -> Traffic:
    sent = [tally for link in statistics.links for tally in link.sent]
    return Traffic(
        bytes_to={link.peer: link.bytes_sent for link in statistics.links},
        bytes_received=statistics.bytes_received,
        raw_bytes=sum(tally.raw_bytes for tally in sent),
        wire_bytes=sum(tally.wire_bytes for tally in sent),
        codec_seconds=statistics.codec_seconds,
    )


class Gathering(Protocol):
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    async def all_gather(self, tensor: Any) -> list[Any]: ...


async def agreed_traffic(ring: Gathering, traffic: Traffic) -> Traffic:
    """The same traffic, with the bytes received as their senders have counted them.

    A rank knows exactly what it has sent by the end of a step. What has arrived by then is another matter: a faster
    rank may have sent the first frames of what comes next, its evaluation or, after a pause, its next gradients.
    """
    ours = torch.zeros(ring.size, dtype=torch.int64)
    for peer, sent in traffic.bytes_to.items():
        ours[peer] = sent
    everyone = await ring.all_gather(ours)
    return replace(traffic, bytes_received=sum(int(theirs[ring.rank]) for theirs in everyone))


RECENT_STEPS = 50


class StepJournal:
    """Steps of this rank, reported through `tell` in batches."""

    def __init__(self, tell: Callable[[Any], None], statistics: Callable[[], TrafficSource]) -> None:
        self._tell, self._statistics = tell, statistics
        self._not_training = traffic_of(statistics())  # sent before training, or during its pauses
        self._untold: list[TrainingStep] = []
        self._recent: deque[TrainingStep] = deque(maxlen=RECENT_STEPS)
        self.steps = self.batches = self.samples = 0

    def enter(self, step: TrainingStep, batches: int) -> None:
        self._untold.append(step)
        self._recent.append(step)
        self.steps += 1
        self.batches += batches
        self.samples += step.samples

    @property
    def loss(self) -> float:
        """Mean over this rank's samples of its last steps; NaN if there were no samples."""
        samples = sum(step.samples for step in self._recent)
        return sum(step.loss * step.samples for step in self._recent) / samples if samples else nan

    def traffic(self) -> Traffic:
        """Traffic of training alone."""
        return traffic_of(self._statistics()) - self._not_training

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Do not count what is sent during the block."""
        before = self.traffic()
        try:
            yield
        finally:
            self._not_training = traffic_of(self._statistics()) - before

    def tell(self) -> None:
        if self._untold:
            traffic = self.traffic()
            self._tell(Progress(tuple(self._untold), traffic.bytes_sent, traffic.bytes_received))
            self._untold.clear()
