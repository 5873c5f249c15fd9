"""Which codec the segments of each bucket get on this rank.

Rules:
- A codec that loses something is used only for sums of floats, and only where the ring allows it: a broadcast, a
  minimum or an integer is never touched.
- `auto` decides on rank 0 (see `choice.py`) and the others are told; a fixed codec needs no telling.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from ringwide.compression.autotune import (
    DEFAULT_BYTES,
    RAW,
    Candidate,
    Decision,
    Explorer,
    Ledger,
    Threshold,
    Totals,
    candidate,
)
from ringwide.compression.codecs.base import Codec
from ringwide.compression.codecs.registry import decoder
from ringwide.compression.feedback import Feedback, FeedbackStore
from ringwide.compression.jobs import CodecJobs, End
from ringwide.errors import RemoteProtocolError
from ringwide.tensors.bucket import Bucket

logger = logging.getLogger("ringwide.compression")

DECIDES = 0
"""The rank that chooses for all."""
CHOICES_REMEMBERED = 1024
Key = TypeVar("Key")
Value = TypeVar("Value")
_Bucket = tuple[int, int]  # the fingerprint of its plan, its index there


@dataclass(frozen=True, slots=True)
class CodecChoice:
    """The codec that a bucket has now, and why."""

    what: str
    bucket: int
    codec: str
    reason: str
    settled: bool  # False: only a trial, to see how long it takes


class CodecPolicy:
    """Decides, for every bucket with bulk, how it is encoded."""

    def __init__(
        self,
        *,
        rank: int,
        codecs: Sequence[Codec],
        auto: bool = False,
        allow_lossy: bool = False,
        threshold_bytes: int | None = DEFAULT_BYTES,
        error_feedback: bool | None = None,
        time: Callable[[], float],
        threads: Callable[[], int] = lambda: 1,
    ) -> None:
        self._decides = auto and rank == DECIDES
        self._codecs = {codec.name: codec for codec in codecs if allow_lossy or not codec.lossy}
        self._auto, self._allow_lossy, self._error_feedback = auto, allow_lossy, error_feedback
        self.threshold = Threshold(threshold_bytes, always_pays=auto)
        self._time = time
        self._threads = threads  # that encode and decode
        self.feedback = FeedbackStore()
        self._explorers: dict[_Bucket, Explorer] = {}
        self._choices: dict[_Bucket, Decision] = {}
        self._settled: dict[_Bucket, str] = {}
        self._names: dict[int, str] = {}

    # -- before a collective

    def jobs_for(
        self, numbers: Bucket, *, what: str, fingerprint: int, index: int, largest_segment_bytes: int
    ) -> CodecJobs | None:
        """How a bucket that goes round the ring is encoded: number `index` of the collective `what`. None: never."""
        if not numbers.ours.size or not self._codecs:
            return None
        may_lose, threshold = self._allow_lossy and numbers.weight > 0, self.threshold.nbytes
        encoder = self._chosen(what, fingerprint, index) if largest_segment_bytes >= threshold else None
        if encoder is not None and (not encoder.carries(numbers.ours.dtype) or (encoder.lossy and not may_lose)):
            encoder = None
        return CodecJobs(
            numbers=numbers,
            encoder=encoder,
            decoder=decoder,
            threshold_bytes=threshold,
            may_lose=may_lose,
            feedback=self._borrow_feedback(encoder, numbers),
            keeps_errors=encoder is not None and self._wants_feedback(encoder),
            on_end=self._end_feedback,
            time=self._time,
        )

    def _chosen(self, what: str, fingerprint: int, index: int) -> Codec | None:
        if not self._auto:
            return next(iter(self._codecs.values()))
        key = fingerprint, index
        _remember(self._names, fingerprint, what)
        if self._decides:
            explorer = self._explorers.get(key) or Explorer()
            _remember(self._explorers, key, explorer)
            return explorer.current.codec
        choice = self._choices.get(key)
        return None if choice is None else self._codecs.get(choice.codec)

    def _borrow_feedback(self, encoder: Codec | None, numbers: Bucket) -> Feedback | None:
        """Also without a lossy codec, if one was used before: what it dropped is then paid back at once."""
        label = numbers.label
        if label is None or self._error_feedback is False or not numbers.weight:
            return None
        if label in self.feedback or (encoder is not None and self._wants_feedback(encoder)):
            return self.feedback.borrow(label, numbers.ours.size, numbers.ours.dtype)
        return None

    def _wants_feedback(self, encoder: Codec) -> bool:
        return encoder.needs_feedback if self._error_feedback is None else encoder.lossy

    # -- after a collective

    def _end_feedback(self, codec_jobs: CodecJobs, end: End) -> None:
        if codec_jobs.feedback is None:
            return
        if end is End.FAILED:
            self.feedback.give_back(codec_jobs.feedback)
        elif end is End.UNDONE:
            self.feedback.undo(codec_jobs.feedback)
        elif codec_jobs.keeps_errors:
            self.feedback.commit(codec_jobs.feedback)
        else:
            self.feedback.drop(codec_jobs.feedback)

    def finished(
        self, fingerprint: int, jobs: Sequence[CodecJobs | None], seconds: float, ledgers: Mapping[int, Ledger]
    ) -> list[tuple[int, Decision]]:
        """A collective has succeeded after so many seconds. What the others must hear: decisions on later calls."""
        try:
            self.threshold.observe(_totals(ledgers), seconds)
            return list(self._decisions(fingerprint, jobs, seconds))
        except Exception:  # what becomes of later calls is no reason to fail this one
            logger.exception("could not choose a codec")
            return []

    def _decisions(
        self, fingerprint: int, jobs: Sequence[CodecJobs | None], seconds: float
    ) -> Iterator[tuple[int, Decision]]:
        """What changes now, bucket by bucket."""
        if not self._decides:
            return
        for index, codec_jobs in enumerate(jobs):
            key = fingerprint, index
            explorer = self._explorers.get(key)
            if codec_jobs is None or explorer is None or codec_jobs.codec_name != explorer.current.name:
                continue  # it was not encoded as the explorer wants to know, but as was right when it was called
            decision = explorer.observe(seconds, partial(self._candidates, codec_jobs))
            if decision is not None:
                self._note(key, decision)
                yield index, decision

    def _candidates(self, codec_jobs: CodecJobs) -> list[Candidate]:
        numbers, may_lose = codec_jobs.numbers.ours, codec_jobs.may_lose
        usable = (
            codec for codec in self._codecs.values() if codec.carries(numbers.dtype) and (may_lose or not codec.lossy)
        )
        return [candidate(codec, numbers, self._time, threads=self._threads()) for codec in usable]

    # -- choices

    def hear_choice(self, peer: int, fingerprint: int, text: str) -> None:
        """The rank that chooses has chosen: "<bucket> <codec> <settled or trial> <reason>"."""
        index, codec, state, reason = (text.split(" ", 3) + [""] * 4)[:4]
        known = codec == "none" or codec in self._codecs
        if peer != DECIDES or not self._auto or self._decides or not known or not index.isdecimal():
            raise RemoteProtocolError(f"rank {peer} chose a codec that it may not choose: {text!r}")
        self._note((fingerprint, int(index)), Decision(codec, reason, state == "settled"))

    def _note(self, key: _Bucket, decision: Decision) -> None:
        before = self._settled.get(key, "none")
        _remember(self._choices, key, decision)
        if decision.settled and decision.codec != before:
            _remember(self._settled, key, decision.codec)
            logger.log(
                logging.INFO if self._decides else logging.DEBUG,  # one line is enough for all ranks
                "bucket %d of %s: codec %s instead of %s: %s",
                key[1],
                self._names.get(key[0], "a call to come"),
                decision.codec,
                before,
                decision.reason,
            )

    def choices(self) -> tuple[CodecChoice, ...]:
        """What was chosen for each bucket, and why."""
        return tuple(
            CodecChoice(self._names.get(fingerprint, ""), bucket, decision.codec, decision.reason, decision.settled)
            for (fingerprint, bucket), decision in self._choices.items()
        )


def _totals(ledgers: Mapping[int, Ledger]) -> Totals:
    sent = [(number, tally) for ledger in ledgers.values() for number, tally in ledger.sent.items()]
    encoded = [tally for number, tally in sent if number != RAW]
    return Totals(
        raw_bytes=sum(tally.raw_bytes for tally in encoded),
        encoded_bytes=sum(tally.wire_bytes for tally in encoded),
        wire_bytes=sum(tally.wire_bytes for _, tally in sent),
        codec_seconds=sum(ledger.encode_seconds + ledger.decode_seconds for ledger in ledgers.values()),
    )


def _remember(memory: dict[Key, Value], key: Key, value: Value) -> None:
    """Note this as the latest, and forget the oldest if there are too many."""
    memory.pop(key, None)
    if len(memory) >= CHOICES_REMEMBERED:
        del memory[next(iter(memory))]
    memory[key] = value
