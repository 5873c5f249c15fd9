"""Damage to the frames of a simulated lane."""

import pytest

from ringwide.errors import CorruptFrame
from ringwide.protocol.frame import HEADER_BYTES, FrameKind, news, sealed_frame, unpack
from ringwide.simulator.frame import garbled, stale


def test_a_garbled_frame_differs_in_one_bit() -> None:
    frame = sealed_frame(news(FrameKind.ABORT, "words"))
    for place in (0.0, 0.5, 1.0):
        damaged = garbled(frame, place)
        assert sum((a ^ b).bit_count() for a, b in zip(frame, damaged, strict=True)) == 1
    with pytest.raises(CorruptFrame):
        unpack(garbled(frame, 0.0), limit_bytes=0, sealed=True)


@pytest.mark.parametrize("sealed", [False, True])
def test_a_stale_frame_is_valid_but_of_another_epoch(sealed: bool) -> None:
    frame = news(FrameKind.ABORT, "words", epoch=7)
    assert unpack(stale(frame, sealed=sealed), limit_bytes=0, sealed=sealed).epoch == 6
    assert stale(frame, sealed=sealed)[HEADER_BYTES:] != frame[HEADER_BYTES:]
