"""Which codec is the fastest for a bucket: found by trying, not by believing.

Rank 0 decides for all, since a ring is as slow as its slowest link and only the time of a whole collective knows which
one that is. It tries the candidates on the caller's own collectives, raw first, each for a few calls, and settles on
the fastest. A candidate is not tried at all when a sample of the numbers shows that it cannot win. When the time of a
call changes for good, or after many calls, everything is tried again. Every frame names its codec, so it does not
matter when the other ranks hear of a choice.
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


SETTLING_CALLS = 1
"""Other ranks may have begun the call after a change before they heard of it."""
MEASURED_CALLS = 3
WORTHWHILE = 0.97
"""A codec must take at most this share of the time that raw numbers take."""
DRIFT = 1.3
DRIFTED_CALLS = 5
QUIET_CALLS = 20
"""After settling, so many calls are not held against the choice."""
RECHECK_CALLS = 500
SAMPLED_SPOTS, SPOT_BYTES, SAMPLED_TIMES, LONG_SECONDS = 4, 256 * 1024, 3, 0.02
DECODED_PER_ENCODED = 2
"""A rank decodes each segment about twice, on both laps, and encodes it once."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A codec and what a sample of the bucket says of it; no codec: the numbers travel raw."""

    codec: Codec | None
    ratio: float = 1.0  # bytes on the wire for each raw byte
    work_seconds: float = 0.0  # of encoding and decoding the whole bucket, as one rank has to

    @property
    def name(self) -> str:
        return "none" if self.codec is None else self.codec.name

    def promise(self, raw_seconds: float) -> float:
        """The time of a call, at best."""
        return max(raw_seconds * self.ratio, self.work_seconds)


RAW_NUMBERS = Candidate(None)


def candidate(codec: Codec, numbers: Array, time: Callable[[], float], *, threads: int = 1) -> Candidate:
    """Try a codec on a sample of the numbers."""
    spots = np.concatenate(list(spread(numbers, SAMPLED_SPOTS, SPOT_BYTES // numbers.itemsize)))
    if not codec.lossy and not shrinks(codec, spots):  # as whoever encodes a segment would ask
        return Candidate(codec)
    payload, seconds = codec.encode(spots), math.inf
    if payload is None:
        return Candidate(codec)
    for _ in range(SAMPLED_TIMES):
        seconds = min(seconds, _try_once(codec, spots, payload, time))
        if seconds > LONG_SECONDS:
            break  # one that takes long needs no second look
    return Candidate(codec, len(payload) / spots.nbytes, seconds * numbers.nbytes / spots.nbytes / max(1, threads))


def _try_once(codec: Codec, spots: Array, payload: memoryview, time: Callable[[], float]) -> float:
    started = time()
    codec.encode(spots)
    encoded = time()
    codec.decode(payload, np.empty_like(spots))
    return (encoded - started) + DECODED_PER_ENCODED * (time() - encoded)


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to be used from now on, and why. Not settled: only to see how long it takes."""

    codec: str
    reason: str
    settled: bool


Candidates = Callable[[], Sequence[Candidate]]
"""Asked once in each round of trials, since numbers change."""


class Explorer:
    """Decides for one bucket."""

    def __init__(self) -> None:
        self._occasion = "first calls"
        self._begin_trials()

    def _begin_trials(self) -> None:
        self._trying = True
        self._measured: dict[str, tuple[float, Candidate]] = {}
        self._untried: list[Candidate] | None = None  # unknown as long as the raw time is
        self._use(RAW_NUMBERS)

    def _use(self, chosen: Candidate) -> None:
        self.current = chosen
        self._calls = 0
        self._recent: deque[float] = deque(maxlen=MEASURED_CALLS if self._trying else DRIFTED_CALLS)

    def observe(self, seconds: float, candidates: Candidates) -> Decision | None:
        """A call with the current codec has taken so long. Returns what changes, if anything does."""
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
            self._untried = sorted(candidates(), key=lambda found: found.promise(raw_seconds), reverse=True)
        while self._untried:
            found = self._untried.pop()
            if found.promise(raw_seconds) <= WORTHWHILE * best_seconds:
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
        """Has the network changed, or may the numbers have?"""
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


# How large a segment must be for its codec to pay.
#
# A job costs some time whatever its size, so small segments travel raw. With `auto` the limit follows what was
# measured: what this link carries a second, how much smaller segments become, how long encoding and decoding take.

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


# Is compressing worth the time? A look at a few spots tells, at a fraction of the cost.


class Look(NamedTuple):
    """How many spots of which size, and what share of their raw size is small enough."""

    spots: int
    spot_bytes: int
    at_most: float


A_GLANCE = Look(8, 4096, 0.9)
A_LONG_LOOK = Look(2, 65536, 0.96)
"""Shuffled numbers shrink in long runs only, and dense floats by a few percent: who asks for a shuffle wants those."""


def shrinks(codec: Codec, numbers: Array, look: Look | None = None) -> bool:
    """Do evenly spread spots of these numbers, encoded one by one, shrink enough?"""
    spots, spot_bytes, at_most = look or (A_LONG_LOOK if isinstance(codec, Shuffled) else A_GLANCE)
    raw = encoded = 0
    for spot in spread(numbers, spots, max(1, spot_bytes // numbers.itemsize)):
        payload = codec.encode(spot)
        raw += spot.nbytes
        encoded += spot.nbytes if payload is None else len(payload)
    return encoded < at_most * raw


def spread(numbers: Array, spots: int, length: int) -> Iterator[Array]:
    """The first spot at the start, the last at the end; all numbers in one if the spots would touch."""
    if numbers.size <= spots * length or spots == 1:
        yield numbers[: max(length, numbers.size if spots > 1 else 0)]
        return
    for spot in range(spots):
        start = (numbers.size - length) * spot // (spots - 1)
        yield numbers[start : start + length]
