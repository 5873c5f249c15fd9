"""What a rank says about its training. Apart from the loop, so that who only listens need not import torch."""

from dataclasses import dataclass


@dataclass(slots=True)
class StopRequest:
    """`signal`: the one this rank has heard; 0: none."""

    signal: int = 0


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """One step of this rank. `loss` is the mean over its own samples of the step; `seconds` when the step ended."""

    number: int  # from 1, over all epochs
    epoch: int  # from 0
    seconds: float  # since training began
    loss: float
    samples: int
    learning_rate: float
    network_seconds: float  # in which gradients of this step travelled, or waited for other ranks
    hidden_seconds: float  # of these, those in which the backward pass was still computing


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """What is about to happen, told once before the first step."""

    parameters: int
    gradient_bytes: int
    buckets: int
    overlapped: bool
    samples: int  # to train on, of all ranks together
    test_samples: int
    steps_per_epoch: int
    first_step: int  # 1, or the one after the checkpoint
    last_step: int | None  # none: only time ends it
    seconds: float | None  # after which it ends, if not before


@dataclass(frozen=True, slots=True)
class Progress:
    """The steps since the last time, told a few times a second, and what they took."""

    steps: tuple[TrainingStep, ...]
    bytes_sent: int  # since training began
    bytes_received: int


@dataclass(frozen=True, slots=True)
class Evaluation:
    """How the model does on the held-out samples. The same on every rank: each looks at its share of them."""

    step: int
    seconds: float
    loss: float
    accuracy: float | None  # none: there are no classes


@dataclass(frozen=True, slots=True)
class Result:
    """How it ended on this rank. `fingerprint` tells whether two ranks hold the same parameters, to the bit."""

    steps: int  # made in this run
    batches: int  # this rank's
    epochs: float  # passes over the samples, with those before a checkpoint
    samples: int  # this rank's
    loss: float  # mean over this rank's samples of its last 50 steps; NaN: it had none
    test_loss: float
    test_accuracy: float | None
    seconds: float  # of training, without starting and evaluating
    network_seconds: float
    hidden_seconds: float
    bytes_sent: int  # in these seconds, as bytes received, ratio and codec's time are
    bytes_received: int
    fingerprint: str
    compression_ratio: float = 1.0  # how many raw bytes became one that was sent
    codec_seconds: float = 0.0  # 0: there is no codec
    peak_memory_bytes: int = 0  # resident, at its highest
    memory_bytes: int = 0  # resident at the end, pages that processes share divided among them (PSS)
    torch_memory_bytes: int = 0  # of these, what importing torch alone took
    stopped_by: int = 0  # the signal that ended it early, on whatever rank it came

    @property
    def steps_per_second(self) -> float:
        return self.steps / self.seconds if self.seconds else 0.0

    @property
    def batches_per_second(self) -> float:
        return self.batches / self.seconds if self.seconds else 0.0

    @property
    def throughput(self) -> float:
        """Bytes sent in a second."""
        return self.bytes_sent / self.seconds if self.seconds else 0.0

    @property
    def network_share(self) -> float:
        return self.network_seconds / self.seconds if self.seconds else 0.0

    @property
    def hidden_share(self) -> float:
        """How much of the network time cost nothing, because the backward pass went on meanwhile."""
        return self.hidden_seconds / self.network_seconds if self.network_seconds else 0.0

    @property
    def codec_share(self) -> float:
        return self.codec_seconds / self.seconds if self.seconds else 0.0
