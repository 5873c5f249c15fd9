"""What a rank says about its training. Apart from the loop, so that who only listens need not import torch."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """A step this rank has made. `loss` is the mean over its own samples of this epoch so far."""

    number: int
    total: int
    epoch: int
    loss: float


@dataclass(frozen=True, slots=True)
class Result:
    """How it ended on this rank. `fingerprint` tells whether two ranks hold the same parameters, to the bit."""

    steps: int
    loss: float
    test_accuracy: float
    seconds: float
    network_seconds: float
    fingerprint: str
    compression_ratio: float = 1.0  # how many raw bytes became one that was sent
    codec_seconds: float = 0.0  # 0: there is no codec

    @property
    def steps_per_second(self) -> float:
        return self.steps / self.seconds

    @property
    def network_share(self) -> float:
        return self.network_seconds / self.seconds

    @property
    def codec_share(self) -> float:
        return self.codec_seconds / self.seconds
