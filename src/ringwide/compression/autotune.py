"""Autotuning: the fastest codec for a bucket, and the segment size from which encoding pays, found by measuring.

Rank 0 decides for all: a ring is as slow as its slowest link, and only the time of a whole collective shows that. It
tries the candidates on the caller's own collectives, raw first, each for a few calls, and settles on the fastest. A
candidate is not tried at all if a sample of the numbers shows that it cannot win. When the time of a call changes for
good, or after many calls, everything is tried again. Every frame names its codec, so it does not matter when the other
ranks learn of a choice.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ringwide.compression.codecs.base import Array, Codec
from ringwide.compression.codecs.shuffle import Shuffled

RAW = 0
"""Codec number of payloads that are not encoded."""


@dataclass(slots=True)
class CodecTally:
    """Count of the segments that travelled with one codec."""

    segments: int = 0
    raw_bytes: int = 0
    wire_bytes: int = 0

    def add(self, raw_bytes: int, wire_bytes: int) -> None:
        self.segments += 1
        self.raw_bytes += raw_bytes
        self.wire_bytes += wire_bytes


@dataclass(slots=True)
class Ledger:
    """Segments of one link by codec number, and the time spent on codecs."""

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


SETTLING_CALLS = 1
"""Calls not measured after a change: other ranks may have begun them before they learned of it."""
MEASURED_CALLS = 3
WORTHWHILE = 0.97
"""A codec must take at most this fraction of the raw time."""
DRIFT = 1.3
DRIFTED_CALLS = 5
QUIET_CALLS = 20
"""After settling, so many calls do not count as drift."""
RECHECK_CALLS = 500
SAMPLED_SPOTS, SPOT_BYTES, SAMPLED_TIMES, LONG_SECONDS = 4, 256 * 1024, 3, 0.02
DECODED_PER_ENCODED = 2
"""A rank decodes each segment about twice, on both laps, and encodes it once."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A codec, and the estimate from a sample of the bucket. Without a codec the numbers travel raw."""

    codec: Codec | None
    ratio: float = 1.0  # bytes on the wire for each raw byte
    work_seconds: float = 0.0  # for encoding and decoding the whole bucket, on one rank

    @property
    def name(self) -> str:
        return "none" if self.codec is None else self.codec.name

    def best_seconds(self, raw_seconds: float) -> float:
        """Time of a call in the best case."""
        return max(raw_seconds * self.ratio, self.work_seconds)


RAW_NUMBERS = Candidate(None)


def candidate(codec: Codec, numbers: Array, time: Callable[[], float], *, threads: int = 1) -> Candidate:
    """Try a codec on a sample of the numbers."""
    spots = np.concatenate(list(spread(numbers, SAMPLED_SPOTS, SPOT_BYTES // numbers.itemsize)))
    if not codec.lossy and not shrinks(codec, spots):  # as `CodecJobs` does before it encodes
        return Candidate(codec)
    payload, seconds = codec.encode(spots), math.inf
    if payload is None:
        return Candidate(codec)
    for _ in range(SAMPLED_TIMES):
        seconds = min(seconds, _try_once(codec, spots, payload, time))
        if seconds > LONG_SECONDS:
            break  # a slow codec needs no second measurement
    return Candidate(codec, len(payload) / spots.nbytes, seconds * numbers.nbytes / spots.nbytes / max(1, threads))


def _try_once(codec: Codec, spots: Array, payload: memoryview, time: Callable[[], float]) -> float:
    started = time()
    codec.encode(spots)
    encoded = time()
    codec.decode(payload, np.empty_like(spots))
    return (encoded - started) + DECODED_PER_ENCODED * (time() - encoded)


@dataclass(frozen=True, slots=True)
class Decision:
    """The codec to use from now on, and the reason. Not settled: only a trial, to measure it."""

    codec: str
    reason: str
    settled: bool


Candidates = Callable[[], Sequence[Candidate]]
"""Called once in each round of trials, since numbers change."""


class Explorer:
    """Tries the candidates for one bucket, and decides."""

    def __init__(self) -> None:
        self._occasion = "first calls"
        self._begin_trials()

    def _begin_trials(self) -> None:
        self._trying = True
        self._measured: dict[str, tuple[float, Candidate]] = {}
        self._untried: list[Candidate] | None = None  # None until the raw time is known
        self._use(RAW_NUMBERS)

    def _use(self, chosen: Candidate) -> None:
        self.current = chosen
        self._calls = 0
        self._recent: deque[float] = deque(maxlen=MEASURED_CALLS if self._trying else DRIFTED_CALLS)

    def observe(self, seconds: float, candidates: Candidates) -> Decision | None:
        """Note the time of a call with the current codec. Returns a decision if something changes."""
        self._calls += 1
        if self._calls <= SETTLING_CALLS:
            return None
        self._recent.append(seconds)
        if not self._trying:
            return self._reconsider()
        if len(self._recent) < MEASURED_CALLS:
            return None
        self._measured[self.current.name] = min(self._recent), self.current
        return self._try_next(candidates)

    def _try_next(self, candidates: Candidates) -> Decision:
        raw_seconds, _ = self._measured[RAW_NUMBERS.name]
        best_seconds, best = min(self._measured.values(), key=lambda measured: measured[0])
        if self._untried is None:
            self._untried = sorted(candidates(), key=lambda found: found.best_seconds(raw_seconds), reverse=True)
        while self._untried:
            found = self._untried.pop()
            if found.best_seconds(raw_seconds) <= WORTHWHILE * best_seconds:
                self._use(found)
                return Decision(found.name, f"a trial: {best.name} takes {best_seconds:.3g} s a call", settled=False)
        if best_seconds > WORTHWHILE * raw_seconds:
            best_seconds, best = raw_seconds, RAW_NUMBERS
        return self._settle(best_seconds, best)

    def _settle(self, seconds: float, best: Candidate) -> Decision:
        self._trying, self._reference = False, seconds
        others = ", ".join(f"{name} {taken:.3g} s" for name, (taken, _) in self._measured.items() if name != best.name)
        self._use(best)
        reason = f"{seconds:.3g} s a call ({others or 'nothing else could be faster'}; {self._occasion})"
        return Decision(best.name, reason, settled=True)

    def _reconsider(self) -> Decision | None:
        """Begin new trials if the network has changed, or the numbers may have."""
        if self._calls < QUIET_CALLS or len(self._recent) < DRIFTED_CALLS:
            return None
        slower, faster = min(self._recent) > DRIFT * self._reference, max(self._recent) < self._reference / DRIFT
        if not (slower or faster or self._calls >= RECHECK_CALLS):
            return None
        self._occasion = (
            f"calls took {min(self._recent):.3g} s instead of {self._reference:.3g} s"
            if slower or faster
            else f"{self._calls} calls later"
        )
        self._begin_trials()
        return Decision(RAW_NUMBERS.name, f"a trial: {self._occasion}", settled=False)


# -- the size from which encoding pays

DEFAULT_BYTES = 512 * 1024
JOB_SECONDS = 100e-6
"""Cost of a job beside encoding and decoding: submitting it, its memory, calling back."""
SMALLEST_BYTES = 4 * 1024
NEVER = 1 << 62
PROBE_CALLS = 64
"""One of so many calls encodes whatever it can: only encoded segments show from which size on encoding pays."""


@dataclass(frozen=True, slots=True)
class Totals:
    """Bytes and codec time of this rank so far."""

    raw_bytes: int = 0  # of segments that were encoded
    encoded_bytes: int = 0  # of the same, encoded
    wire_bytes: int = 0  # all that was sent
    codec_seconds: float = 0.0


class Threshold:
    """Size from which segments are encoded: the one that was set, or the one from which it pays.

    A job costs some time whatever its size, so small segments travel raw. Without a fixed size the threshold follows
    measurements: the rate of this link, how much segments shrink, and the time of encoding and decoding.
    """

    def __init__(self, fixed_bytes: int | None, *, always_pays: bool = False) -> None:
        self._fixed = fixed_bytes
        self._worst = DEFAULT_BYTES if always_pays else NEVER  # `always_pays`: the explorer has made sure of it
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
        """The threshold for reports. None: nothing is encoded."""
        nbytes = self._measured if self._fixed is None else self._fixed
        return nbytes if nbytes < NEVER else None

    def observe(self, now: Totals, seconds: float) -> None:
        """Learn from a call with bulk that took so long. `now` has the totals after it."""
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


# -- sampling


class Sampling(NamedTuple):
    """Number and size of the sampled spots, and the fraction of their raw size that counts as shrunk."""

    spots: int
    spot_bytes: int
    at_most: float


SHORT_SPOTS = Sampling(8, 4096, 0.9)
LONG_SPOTS = Sampling(2, 65536, 0.96)
"""For shuffled numbers: they shrink in long runs only, and dense floats by just a few percent."""


def shrinks(codec: Codec, numbers: Array, sampling: Sampling | None = None) -> bool:
    """Whether evenly spread spots of these numbers shrink enough. It costs a fraction of encoding them all."""
    spots, spot_bytes, at_most = sampling or (LONG_SPOTS if isinstance(codec, Shuffled) else SHORT_SPOTS)
    raw = encoded = 0
    for spot in spread(numbers, spots, max(1, spot_bytes // numbers.itemsize)):
        payload = codec.encode(spot)
        raw += spot.nbytes
        encoded += spot.nbytes if payload is None else len(payload)
    return encoded < at_most * raw


def spread(numbers: Array, spots: int, length: int) -> Iterator[Array]:
    """Spots from the start to the end of the numbers. If they would touch, one spot with all numbers."""
    if numbers.size <= spots * length or spots == 1:
        yield numbers[: max(length, numbers.size if spots > 1 else 0)]
        return
    for spot in range(spots):
        start = (numbers.size - length) * spot // (spots - 1)
        yield numbers[start : start + length]
