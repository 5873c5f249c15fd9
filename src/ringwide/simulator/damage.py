"""What may become of bytes on their way. TCP does not do that; those who stand between two ranks can."""

from ringwide.protocol.frame import HEADER_BYTES, sealed_frame

_EPOCH_AT = 8
"""Where a header has its epoch, see docs/wire.md."""


def stale(frame: bytes, *, sealed: bool) -> bytes:
    """A frame like this one, as it may have been sent in another epoch: with other numbers."""
    old = bytearray(frame)
    old[_EPOCH_AT] ^= 1
    header, payload = bytes(old[:HEADER_BYTES]), bytes(255 - byte for byte in old[HEADER_BYTES:])
    return sealed_frame(header + payload) if sealed else header + payload


def garbled(data: bytes, place: float) -> bytes:
    """One bit is flipped. `place` says which: from 0 for the first one to 1 for the last."""
    damaged = bytearray(data)
    bit = min(int(place * 8 * len(data)), 8 * len(data) - 1)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)
