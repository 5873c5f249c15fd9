"""Operation on a bucket some of whose segments travel encoded.

A segment that comes raw and goes on raw is handled as in any operation, at once. Every other one becomes a job for the
codec pool (`compression/jobs.py`). Its payload is borrowed from the lane until the job is done and, if it goes on, has
left.
"""

from collections import deque
from collections.abc import Callable
from functools import partial

from ringwide.collectives.bucket_operation import (
    NOTHING,
    RELAYED_LIMIT_BYTES,
    BucketTask,
    LaneLike,
    Operation,
    SendOwner,
)
from ringwide.collectives.half_operation import HalfOperation
from ringwide.collectives.plan import Plan
from ringwide.compression.autotune import RAW
from ringwide.compression.codecs.base import BadPayload
from ringwide.compression.jobs import CodecJobs, CodecPoolLike, Job, JobResult, Settle, Then, do_now
from ringwide.compression.policy import CodecPolicy
from ringwide.errors import RemoteProtocolError
from ringwide.protocol.frame import Header
from ringwide.protocol.instruction import Combine, Keep, Relay, Script, Send

DEPARTING = 4
"""How many segments that start here are in the codec pool at most."""

OnFailed = Callable[[int | None, Exception], None]
"""Told that a job has failed, and who sent what it failed on, if anybody did."""


class CompressedOperation(Operation):
    """An operation that encodes what it sends where that pays, and decodes what comes encoded."""

    codec_jobs: CodecJobs

    def __init__(self, task: BucketTask, codec_jobs: CodecJobs, codec_pool: CodecPoolLike, on_failed: OnFailed) -> None:
        super().__init__(task)
        self.codec_jobs, self._codec_pool, self._on_failed = codec_jobs, codec_pool, on_failed
        self._departures: deque[tuple[Script, int]] = deque()  # what starts here and has not been handed in
        self._departing = self._arrivals = 0  # how many of each are in the codec pool
        self._handed_in = 0
        self._jobs: dict[int, Settle] = {}  # by number, how to make sure that it is not running
        self._over = False

    def begin(self) -> None:
        self.codec_jobs.sample([slice(*self._bounds[segment]) for segment, _ in self._machine.begin()])
        super().begin()

    def check(self, peer: int, header: Header) -> None:
        if header.codec == RAW:
            super().check(peer, header)
            return
        self._check_turn(peer, header)
        if problem := self.codec_jobs.check(header, self._raw_bytes(header.segment, header.hop)):
            self._refuse(peer, header.segment, problem)

    def landing(self, lane: LaneLike, header: Header, here: memoryview | None) -> memoryview:
        if header.codec == RAW:
            return super().landing(lane, header, None)  # it may be lent to a job, so it cannot stay
        return lane.scratch.take(header.payload_bytes)

    def _execute(
        self, script: Script, segment: int, payload: memoryview, lane: LaneLike | None, codec: int = RAW
    ) -> None:
        if codec == RAW and not self.codec_jobs.takes(script, self._segment_bytes(segment)):
            super()._execute(script, segment, payload, lane)
        else:
            self._hand_in(script, segment, payload, lane, codec)

    # -- jobs

    def _hand_in(self, script: Script, segment: int, payload: memoryview, lane: LaneLike | None, codec: int) -> None:
        self._unsent += 1  # before its job is done, nobody knows what is still to be sent
        if lane is None:
            self._departures.append((script, segment))
            self._depart()
            return
        job = partial(self._job, script, segment, payload, codec)
        then = partial(self._job_done, script, segment, Loan(self, lane))
        self._arrivals += 1
        if self._arrivals * self._segment_bytes(segment) > RELAYED_LIMIT_BYTES:
            do_now(job, then)  # enough has been borrowed
        else:
            self._run(job, then)

    def _run(self, job: Job, then: Then) -> None:
        self._handed_in += 1
        number = self._handed_in
        self._jobs[number] = self._codec_pool.run(job, partial(self._report, number, then))

    def _report(self, number: int, then: Then, carried: JobResult | None, error: Exception | None) -> None:
        self._jobs.pop(number, None)
        then(carried, error)

    def _depart(self) -> None:
        """Hand in what starts here, a few at a time: what arrives must not wait behind all of it."""
        while self._departures and self._departing < DEPARTING:
            script, segment = self._departures.popleft()
            self._departing += 1
            job = partial(self._job, script, segment, NOTHING, RAW)
            self._run(job, partial(self._job_done, script, segment, None))

    def _job(self, script: Script, segment: int, payload: memoryview, codec: int) -> JobResult | None:
        if self._over:
            return None
        if isinstance(script[0], (Combine, Keep)):
            self._snapshot.save(segment)
        return self.codec_jobs.carry_out(script, slice(*self._bounds[segment]), payload, codec)

    def _job_done(
        self, script: Script, segment: int, loan: "Loan | None", carried: JobResult | None, error: Exception | None
    ) -> None:
        if loan is None:
            self._departing -= 1
        else:
            self._arrivals -= 1
        if self._over or carried is None:
            if loan is not None:
                loan.give_back()
            if error is not None and not self._over:
                self._fail(segment, loan, error)
            return
        try:
            self._note_seconds(script, loan, carried)
            self._go_on(script, segment, loan, carried)
            self._depart()
            self.sent()
        except Exception as problem:  # an event loop would only print it, and the caller wait on
            self._fail(segment, loan, problem)

    def _note_seconds(self, script: Script, loan: "Loan | None", carried: JobResult) -> None:
        if loan is not None:
            self._ledgers[loan.peer].decode_seconds += carried.decode_seconds
        if isinstance(script[-1], (Send, Relay)):
            self._ledgers[script[-1].peer].encode_seconds += carried.encode_seconds

    def _go_on(self, script: Script, segment: int, loan: "Loan | None", carried: JobResult) -> None:
        """Send what the job has made. What came encoded and is kept goes on verbatim, from where it has landed."""
        onward, payload = script[-1], carried.payload
        owner: SendOwner = self
        if loan is not None and payload is not None and isinstance(script[0], Keep):
            owner = loan
        elif loan is not None:
            loan.give_back()
        if payload is None:
            return
        assert isinstance(onward, (Send, Relay))
        if owner is self and self._unsent * len(payload) >= RELAYED_LIMIT_BYTES:
            payload = self._stow(segment, payload, onward.hop)
        self._send(segment, payload, onward.hop, onward.peer, owner, carried.codec)

    def _stow(self, segment: int, payload: memoryview, hop: int) -> memoryview:
        """Let a sum on its way wait in the bucket: its place there is free until the segment's total comes back."""
        if not self._machine.combines(hop):
            return payload
        self._snapshot.save(segment)
        place = self._value(segment)[: len(payload)]
        place[:] = payload
        return place

    # -- the end

    def _fail(self, segment: int, loan: "Loan | None", error: Exception) -> None:
        peer = None if loan is None else loan.peer
        if isinstance(error, BadPayload) and peer is not None:
            error = RemoteProtocolError(self._accuse(peer, segment, f"and its payload cannot be decoded: {error}"))
        self._on_failed(peer, error)

    def succeed(self) -> None:
        super().succeed()
        self.codec_jobs.succeed()

    def undo(self) -> None:
        super().undo()
        self.codec_jobs.undo()

    def abandon(self) -> None:
        self._over = True
        for settle in self._jobs.values():
            settle()
        super().abandon()
        self.codec_jobs.abandon()


class Loan:
    """An arrived payload, in its lane's scratch until it is no longer needed."""

    __slots__ = ("_lent", "_operation", "_scratch", "peer")

    def __init__(self, operation: Operation, lane: LaneLike) -> None:
        self.peer = lane.peer
        self._operation, self._scratch, self._lent = operation, lane.scratch, lane.scratch.lend()

    def give_back(self) -> None:
        self._scratch.give_back(self._lent)

    def sent(self) -> None:
        self.give_back()
        self._operation.sent()


def operation_for(
    task: BucketTask, plan: Plan, policy: CodecPolicy | None, pool: CodecPoolLike | None, on_failed: OnFailed
) -> Operation:
    """The operation of a bucket: only what goes round the ring is ever encoded."""
    if task.numbers.halves is not None:
        return HalfOperation(task)
    if policy is None or pool is None or task.plan.algorithm != "ring":
        return Operation(task)
    codec_jobs = policy.jobs_for(
        task.numbers,
        what=plan.what,
        fingerprint=plan.fingerprint,
        index=task.fields.bucket,
        largest_segment_bytes=task.plan.layout.largest_segment_bytes,
    )
    return Operation(task) if codec_jobs is None else CompressedOperation(task, codec_jobs, pool, on_failed)
