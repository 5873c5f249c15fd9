"""What segments weighed before and after their codec, and what that cost: one ledger for each link."""

from dataclasses import dataclass, field

RAW = 0
"""The number of the codec that does nothing."""


@dataclass(slots=True)
class CodecTally:
    """Segments that travelled in one way."""

    segments: int = 0
    raw_bytes: int = 0
    wire_bytes: int = 0

    def add(self, raw_bytes: int, wire_bytes: int) -> None:
        self.segments += 1
        self.raw_bytes += raw_bytes
        self.wire_bytes += wire_bytes


@dataclass(slots=True)
class Ledger:
    """The segments of one link, by the number of their codec."""

    sent: dict[int, CodecTally] = field(default_factory=dict)
    received: dict[int, CodecTally] = field(default_factory=dict)
    encode_seconds: float = 0.0
    decode_seconds: float = 0.0

    def note_sent(self, codec: int, raw_bytes: int, wire_bytes: int) -> None:
        tally = self.sent.get(codec)
        if tally is None:
            tally = self.sent[codec] = CodecTally()
        tally.add(raw_bytes, wire_bytes)

    def note_received(self, codec: int, raw_bytes: int, wire_bytes: int) -> None:
        tally = self.received.get(codec)
        if tally is None:
            tally = self.received[codec] = CodecTally()
        tally.add(raw_bytes, wire_bytes)
