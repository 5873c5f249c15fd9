"""Codec policy: the choice of a codec for each bucket of this rank.

Rules:
- A lossy codec is used only for sums of floats, and only where the ring allows it. A broadcast, a minimum or an integer
  is never changed.
- With `auto`, rank 0 decides (see `autotune.py`) and tells the others. A fixed codec is known to all.
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

DECIDING_RANK = 0
"""The rank that chooses for all."""
CHOICES_REMEMBERED = 1024
Key = TypeVar("Key")
Value = TypeVar("Value")
_Bucket = tuple[int, int]  # the fingerprint of its plan, its index there


@dataclass(frozen=True, slots=True)
class CodecChoice:
    """The codec that a bucket has now, and the reason."""

    what: str
    bucket: int
    codec: str
    reason: str
    settled: bool  # False: only a trial, to measure it


class CodecPolicy:
    """Chooses the codec of every bucket that travels round the ring, and keeps their error feedback."""

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
        self._decides = auto and rank == DECIDING_RANK
        self._codecs = {codec.name: codec for codec in codecs if allow_lossy or not codec.lossy}
        self._auto, self._allow_lossy, self._error_feedback = auto, allow_lossy, error_feedback
        self.threshold = Threshold(threshold_bytes, always_pays=auto)
        self._time = time
        self._threads = threads  # of the codec pool
        self.feedback = FeedbackStore()
        self._explorers: dict[_Bucket, Explorer] = {}
        self._choices: dict[_Bucket, Decision] = {}
        self._settled: dict[_Bucket, str] = {}
        self._names: dict[int, str] = {}

    # -- before a collective

    def jobs_for(
        self, numbers: Bucket, *, what: str, fingerprint: int, index: int, largest_segment_bytes: int
    ) -> CodecJobs | None:
        """The jobs for a bucket that travels round the ring, number `index` of the collective `what`. None: none."""
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
        """The error feedback of a bucket. If a lossy codec was used before, its last error is due without one too."""
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
        self,
        fingerprint: int,
        jobs_by_bucket: Sequence[CodecJobs | None],
        seconds: float,
        ledgers: Mapping[int, Ledger],
    ) -> list[tuple[int, Decision]]:
        """Learn from a collective that took so many seconds. Returns decisions on later calls, to tell the others."""
        try:
            self.threshold.observe(_totals(ledgers), seconds)
            return list(self._decisions(fingerprint, jobs_by_bucket, seconds))
        except Exception:  # the codec of later calls is no reason to fail this one
            logger.exception("could not choose a codec")
            return []

    def _decisions(
        self, fingerprint: int, jobs_by_bucket: Sequence[CodecJobs | None], seconds: float
    ) -> Iterator[tuple[int, Decision]]:
        """The new decision of each bucket that gets one."""
        if not self._decides:
            return
        for index, codec_jobs in enumerate(jobs_by_bucket):
            key = fingerprint, index
            explorer = self._explorers.get(key)
            if codec_jobs is None or explorer is None or codec_jobs.codec_name != explorer.current.name:
                continue  # the call began before the explorer's last decision
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

    def on_choice(self, peer: int, fingerprint: int, text: str) -> None:
        """Note a choice of the deciding rank: "<bucket> <codec> <settled or trial> <reason>"."""
        index, codec, state, reason = (text.split(" ", 3) + [""] * 4)[:4]
        known = codec == "none" or codec in self._codecs
        if peer != DECIDING_RANK or not self._auto or self._decides or not known or not index.isdecimal():
            raise RemoteProtocolError(f"rank {peer} chose a codec that it may not choose: {text!r}")
        self._note((fingerprint, int(index)), Decision(codec, reason, state == "settled"))

    def _note(self, key: _Bucket, decision: Decision) -> None:
        before = self._settled.get(key, "none")
        _remember(self._choices, key, decision)
        if decision.settled and decision.codec != before:
            _remember(self._settled, key, decision.codec)
            logger.log(
                logging.INFO if self._decides else logging.DEBUG,  # one line for all ranks is enough
                "bucket %d of %s: codec %s instead of %s: %s",
                key[1],
                self._names.get(key[0], "a future call"),
                decision.codec,
                before,
                decision.reason,
            )

    def choices(self) -> tuple[CodecChoice, ...]:
        """The current choice for each bucket, and the reason."""
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
    """Store an entry as the latest, and drop the oldest if there are too many."""
    memory.pop(key, None)
    if len(memory) >= CHOICES_REMEMBERED:
        del memory[next(iter(memory))]
    memory[key] = value
