"""What a ring has sent, in a form of which the part before something can be taken away."""

from dataclasses import dataclass
from typing import Protocol


class Statistics(Protocol):
    """Since the ring was joined. One that encodes also has `links`, each with what was `sent` by codec."""

    @property
    def bytes_sent(self) -> int: ...
    @property
    def bytes_received(self) -> int: ...
    @property
    def codec_seconds(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Traffic:
    bytes_sent: int = 0
    bytes_received: int = 0
    raw_bytes: int = 0  # of segments, before they were encoded
    wire_bytes: int = 0  # of the same, as they were sent
    codec_seconds: float = 0.0

    @property
    def compression_ratio(self) -> float:
        return self.raw_bytes / self.wire_bytes if self.wire_bytes else 1.0

    def __sub__(self, before: "Traffic") -> "Traffic":
        return Traffic(
            bytes_sent=self.bytes_sent - before.bytes_sent,
            bytes_received=self.bytes_received - before.bytes_received,
            raw_bytes=self.raw_bytes - before.raw_bytes,
            wire_bytes=self.wire_bytes - before.wire_bytes,
            codec_seconds=self.codec_seconds - before.codec_seconds,
        )


def traffic_of(statistics: Statistics) -> Traffic:
    sent = [tally for link in getattr(statistics, "links", ()) for tally in link.sent]
    return Traffic(
        bytes_sent=statistics.bytes_sent,
        bytes_received=statistics.bytes_received,
        raw_bytes=sum(tally.raw_bytes for tally in sent),
        wire_bytes=sum(tally.wire_bytes for tally in sent),
        codec_seconds=statistics.codec_seconds,
    )
