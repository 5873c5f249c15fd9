"""Progress messages of a rank. They are apart from the loop, so that a reader need not import torch."""

from dataclasses import dataclass


@dataclass(slots=True)
class StopRequest:
    """Request to stop: `signal` is the one this rank has received; 0: none."""

    signal: int = 0


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """Step of this rank.

    `loss` is the mean over its own samples. Where targets have weights, it is this rank's part, per sample: the mean
    over the samples of all ranks is the loss of the step.
    """

    number: int  # from 1, over all epochs
    epoch: int  # from 0
    seconds: float  # from the start of training to the end of the step
    loss: float
    samples: int
    learning_rate: float
    network_seconds: float  # time in which gradients were under way or waited for other ranks
    hidden_seconds: float  # of it, the time in which the backward pass went on
    gradient_norm: float | None = None  # of the averaged gradients, before clipping; None without clip_norm


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """Plan of the training, sent once before the first step."""

    parameters: int
    gradient_bytes: int
    buckets: int
    overlapped: bool
    samples: int  # to train on, of all ranks together
    test_samples: int
    steps_per_epoch: int
    first_step: int  # 1, or the one after the checkpoint
    last_step: int | None  # None: only time ends it
    seconds: float | None  # time limit


@dataclass(frozen=True, slots=True)
class Progress:
    """Steps since the last message, sent a few times a second."""

    steps: tuple[TrainingStep, ...]
    bytes_sent: int  # since training began
    bytes_received: int  # so far: what others sent last may still be under way


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Evaluation on the held-out samples. It is the same on every rank, and each computes its share."""

    step: int
    seconds: float
    loss: float
    accuracy: float | None  # None without classes


@dataclass(frozen=True, slots=True)
class Result:
    """Result on this rank. Equal fingerprints mean equal parameters, to the bit."""

    steps: int  # made in this run
    batches: int  # this rank's
    epochs: float  # passes over the samples, including those before a checkpoint
    samples: int  # this rank's
    loss: float  # mean over this rank's samples of its last 50 steps; NaN: it had none
    test_loss: float
    test_accuracy: float | None
    seconds: float  # of training, without start and evaluation
    network_seconds: float
    hidden_seconds: float
    bytes_sent: int  # in these seconds, as are bytes received, ratio and codec time
    bytes_received: int  # as their senders counted them
    fingerprint: str
    compression_ratio: float = 1.0  # raw bytes per byte sent
    codec_seconds: float = 0.0  # 0 without a codec
    peak_memory_bytes: int = 0  # peak resident
    memory_bytes: int = 0  # resident at the end, shared pages divided among processes (PSS)
    torch_memory_bytes: int = 0  # of it, the libraries of torch
    stopped_by: int = 0  # signal that ended it early, on any rank

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
        """Share of the network time that was hidden behind the backward pass."""
        return self.hidden_seconds / self.network_seconds if self.network_seconds else 0.0

    @property
    def codec_share(self) -> float:
        return self.codec_seconds / self.seconds if self.seconds else 0.0
