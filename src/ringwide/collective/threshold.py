"""How large a segment must be for its codec to pay.

A job costs some time whatever its size, so small segments travel raw. With `auto` the limit follows what was measured:
what this link carries a second, how much smaller segments become, how long encoding and decoding take.
"""

from collections import deque
from dataclasses import dataclass

DEFAULT_BYTES = 512 * 1024
JOB_SECONDS = 100e-6
"""What a job costs beside encoding and decoding: being handed in, memory, being handed back."""
SMALLEST_BYTES = 4 * 1024
NEVER = 1 << 62
PROBE_CALLS = 64
"""The first of so many calls encodes whatever it can: only what was encoded tells from which size on that pays."""


@dataclass(frozen=True, slots=True)
class Totals:
    """What this rank has done so far."""

    raw_bytes: int = 0  # of segments that were encoded
    encoded_bytes: int = 0  # what they became
    wire_bytes: int = 0  # everything that was sent
    codec_seconds: float = 0.0


class Threshold:
    """A limit in bytes: the one that was set, or the one that pays."""

    def __init__(self, fixed_bytes: int | None, *, always_pays: bool = False) -> None:
        self._fixed = fixed_bytes
        self._worst = DEFAULT_BYTES if always_pays else NEVER  # `always_pays`: somebody else sees to that
        self._measured = DEFAULT_BYTES
        self._before = Totals()
        self._rates: deque[float] = deque(maxlen=PROBE_CALLS)
        self._calls = 0

    @property
    def nbytes(self) -> int:
        if self._fixed is not None:
            return self._fixed
        return self._measured if self._calls % PROBE_CALLS else SMALLEST_BYTES

    @property
    def reported(self) -> int | None:
        """For people: none, if nothing is encoded."""
        nbytes = self._measured if self._fixed is None else self._fixed
        return nbytes if nbytes < NEVER else None

    def observe(self, now: Totals, seconds: float) -> None:
        """A call with bulk took so long, and this is what has been done in all."""
        if self._fixed is not None or seconds <= 0:
            return
        before, self._before = self._before, now
        self._calls += 1
        self._rates.append((now.wire_bytes - before.wire_bytes) / seconds)
        raw, encoded = now.raw_bytes - before.raw_bytes, now.encoded_bytes - before.encoded_bytes
        if raw and (rate := max(self._rates)):
            saved_a_byte = (1 - encoded / raw) / rate
            gained_a_byte = saved_a_byte - (now.codec_seconds - before.codec_seconds) / raw
            self._measured = max(SMALLEST_BYTES, int(JOB_SECONDS / gained_a_byte)) if gained_a_byte > 0 else self._worst
