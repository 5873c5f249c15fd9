"""Which codec is the fastest for a bucket: found by trying, not by believing.

Rank 0 decides for all, since a ring is as slow as its slowest link and only the time of a whole collective knows which
one that is. It tries the candidates on the caller's own collectives, raw first, each for a few calls, and settles on
the fastest. A candidate is not tried at all when a sample of the numbers shows that it cannot win. When the time of a
call changes for good, or after many calls, everything is tried again. Every frame names its codec, so it does not
matter when the other ranks hear of a choice.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ringwide.codec.codec import Array, Codec
from ringwide.codec.sampling import shrinks, spread

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
