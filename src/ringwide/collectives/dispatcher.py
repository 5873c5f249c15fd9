"""Dispatcher: numbers the collectives of one rank, gives each arrival to the right one, and ends them truthfully.

Rules:
- Collectives are numbered in the order of the calls, and every rank makes the same calls in the same order. A named
  channel has an order, and numbers, of its own (`Channel`).
- Small collectives begin at once. One with bulk waits until those with bulk before it are done here. So no bulk lane
  carries frames of an earlier collective behind those of a later one, and a lane can be paused when its peer is ahead.
- Between channels there is no such order. A collective with bulk on a named channel first lets all ranks hear that all
  have called it (its gate), and is never waited for.
- A small frame that is ahead of us is kept until our call comes (`EarlyFrames`). A peer cannot be far ahead: no
  collective succeeds on any rank before it has begun on all, and a rank has a bounded number open.
- Each frame has its collective's fingerprint: what is asked for, how it is planned, and who called. When one differs,
  all ranks tell all others what they were called with, each fails with both sides named, and the next one is right.
- How a ring ends is in `peer_loss.py`, how long it waits in `deadlines.py`, what ranks tell each other in `news.py`.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence

from ringwide.collectives.bucket_operation import BucketTask, FrameFields, LaneLike, LinkLike, Operation
from ringwide.collectives.compressed_operation import operation_for
from ringwide.collectives.deadlines import Clock, Deadlines
from ringwide.collectives.half_operation import SingleHalfOperation
from ringwide.collectives.news import (
    Announcements,
    abort_error,
    mismatch_error,
    misplaced,
    timeout_error,
    told_timeout,
)
from ringwide.collectives.peer_loss import PeerLoss, Transfers
from ringwide.collectives.plan import Plan
from ringwide.collectives.running_collective import (
    Channel,
    Channels,
    Collective,
    Done,
    EarlyFrames,
    LaneSharing,
    Mark,
)
from ringwide.collectives.single_segment import SingleSegmentOperation
from ringwide.compression.autotune import Ledger
from ringwide.compression.jobs import CodecPoolLike
from ringwide.compression.policy import CodecPolicy
from ringwide.errors import RemoteProtocolError, RingwideError, fresh
from ringwide.protocol.frame import DATA, LAST_OF_COLLECTIVES, FrameKind, Header, key_of, read_goodbye, words_in
from ringwide.tensors.bucket import Bucket


def _nobody(_: RingwideError | None) -> None: ...


class Dispatcher:
    """Knows every open collective of this rank."""

    def __init__(
        self,
        *,
        rank: int,
        links: Mapping[int, LinkLike],
        clock: Clock,
        timeout_seconds: float,
        warn_after_seconds: float = 10.0,
        codec_policy: CodecPolicy | None = None,
        codec_pool: CodecPoolLike | None = None,
        transfers: Transfers | None = None,
        on_over: Callable[[RingwideError], None] = _nobody,
        sharing: LaneSharing | None = None,
    ) -> None:
        sharing = sharing or LaneSharing()
        epoch, self._sharing, self._paused = sharing.epoch, sharing, sharing.paused
        self._rank, self._links, self._clock, self._epoch = rank, links, clock, epoch
        self._codec_policy, self._codec_pool = codec_policy, codec_pool
        self.ledgers = {peer: Ledger() for peer in links}
        self.channels = Channels(ordered=sharing.ordered)
        self._open: dict[int, Collective] = {}
        self.deadlines = Deadlines(
            open_=self._open,
            peers=list(links),
            clock=clock,
            timeout_seconds=timeout_seconds,
            warn_after_seconds=warn_after_seconds,
            give_up=self._give_up,
            transfers=transfers,
        )
        self._line: deque[Collective] = deque()  # those with bulk, in order; only the first one has begun
        self._early = EarlyFrames()
        self._announcements = Announcements(links, clock, epoch)
        self.peer_loss = PeerLoss(
            rank=rank,
            peers=list(links),
            open_=self._open,
            clock=clock,
            epoch=epoch,
            tell_all=self._announcements.tell_all,
            doom=self._doom,
            transfers=transfers,
            on_over=on_over,
        )

    @property
    def finished(self) -> dict[int, int]:
        """Of each channel: every collective up to this number is over here, and nobody must still hear of it."""
        return self.channels.finished([*self._open, *self._announcements.untold])

    @property
    def over(self) -> RingwideError | None:
        """Why nothing can be started any more."""
        return self.peer_loss.over

    @property
    def has_open_work(self) -> bool:
        return bool(self._open)

    # -- from above

    def submit(
        self,
        plan: Plan,
        buckets: Sequence[Bucket],
        on_done: Done,
        *,
        channel: Channel | None = None,
        mark: Mark | None = None,
    ) -> Collective:
        """Start a collective. `on_done` is called once, with the error if there is one, perhaps before this returns."""
        channel = channel or self.channels.default
        number, channel.next = channel.next, channel.next + 1
        if self.peer_loss.over is not None:
            self.peer_loss.check(number)
        collective = Collective(number, plan, on_done, channel=channel, mark=mark)
        self._open[number] = collective
        self._paused.unordered += collective.gated
        if not self.deadlines.ticking:
            self.deadlines.start_ticking()
        try:
            for index, numbers in enumerate(buckets):
                collective.operations.append(self._operation(collective, index, numbers))
            if plan.express or collective.gated:
                self._begin(collective)
            else:
                self._line.append(collective)
                self._move_line()
        except BaseException as error:  # no memory, for example, or a signal whose handler raises
            self.abort(collective, f"it could not begin: {error!r}")
            raise
        return collective

    def abort(self, collective: Collective, reason: str, *, leaving: bool = False) -> None:
        """Give up on a collective here, and tell the others. Its `on_done` is not called.

        One that is `leaving` leaves it to its goodbye to tell them, if that comes soon.
        """
        if collective.number in self._open:
            collective.on_done = _nobody
            self._announcements.abort(collective.number, reason, leaving=leaving)
            self._end(collective, None)

    def skip(self, reason: str, channel: Channel | None = None) -> int:
        """A call that takes no part has a number all the same, and the others must not wait for it."""
        channel = channel or self.channels.default
        number, channel.next = channel.next, channel.next + 1
        self._early.take(number)
        self._announcements.abort(number, reason)
        self._paused.resume()
        return number

    def close(self, error: RingwideError) -> None:
        """Nothing can be started any more, and what is still open ends with this error."""
        self.peer_loss.close_down(error)

    def say_goodbye(self, reason: str) -> None:
        self._announcements.goodbye(reason, self.finished.values())

    def _operation(self, collective: Collective, index: int, numbers: Bucket) -> Operation | SingleSegmentOperation:
        part = collective.plan.parts[index]
        if part.tree is not None:
            return (SingleSegmentOperation if numbers.halves is None else SingleHalfOperation)(
                part.tree,
                numbers,
                self._links,
                self._operation_done,
                bucket=index,
                collective=collective.number,
                fingerprint=collective.fingerprint,
                epoch=self._epoch,
            )
        frame_fields = FrameFields(index, collective.number, collective.fingerprint, self._epoch)
        task = BucketTask(part, numbers, self._links, self.ledgers, frame_fields, self._operation_done)
        return operation_for(task, collective.plan, self._codec_policy, self._codec_pool, self._job_failed)

    # -- beginning and ending

    def _move_line(self) -> None:
        """Let the first of those with bulk begin."""
        if self._line and not self._line[0].begun:
            self._begin(self._line[0])

    def _begin(self, collective: Collective) -> None:
        collective.begun, collective.begun_at = True, self._clock.time()
        for operation in collective.operations:
            if operation.express or not collective.gated:
                operation.begin()
        self._catch_up(collective)
        if self.peer_loss.anybody_gone:
            self.peer_loss.look_for_orphans()

    def _open_gate(self, collective: Collective) -> None:
        """All ranks have called it: what it has of bulk begins."""
        collective.gated = False
        for operation in collective.operations:
            if not operation.express:
                operation.begin()
        self._catch_up(collective)

    def _catch_up(self, collective: Collective) -> None:
        """Hear what came before its time."""
        if collective.number in self._early.frames:
            self._hear_early(collective)
        if self._paused.lanes:
            self._paused.resume()

    def _hear_early(self, collective: Collective) -> None:
        for lane, header, payload in self._early.take(collective.number):
            if collective.number not in self._open:
                return
            hear = self._hear_data if header.kind == DATA else self._hear_news
            try:
                hear(lane, collective, header, memoryview(payload))
            except RemoteProtocolError as error:  # of the peer that sent it, whoever made us look at it now
                self.peer_loss.give_up_on(lane.peer, error)

    def _operation_done(self, number: int) -> None:
        collective = self._open.get(number)
        if collective is None:
            return  # it has failed meanwhile
        collective.unfinished -= 1
        if not collective.unfinished:
            self._end(collective, None)
        elif collective.gated and collective.gate_is_open:
            self._open_gate(collective)

    def _end(self, collective: Collective, error: RingwideError | None) -> None:
        if self._open.pop(collective.number, None) is None:
            return
        self._paused.unordered -= collective.is_unordered_bulk
        if collective.unfinished:
            for link in self._links.values():
                link.forget(key_of(self._epoch, collective.number))
            for operation in collective.operations:
                operation.abandon()
        else:
            collective.succeeded = collective.operations
            if not collective.plan.express:
                self._conclude(collective)
        if self._line and collective in self._line:
            self._line.remove(collective)
        if collective.number in self._early.frames:
            self._early.take(collective.number)
        on_done, collective.on_done = collective.on_done, _nobody
        collective.operations = []  # they refer to the collective: without this, only the garbage collector ends it
        on_done(error)
        self._move_line()
        if self._paused.lanes:  # by what is over now, perhaps, and behind it is what another channel needs
            self._paused.resume()

    def _conclude(self, collective: Collective) -> None:
        """All went well: errors of codecs are settled, and perhaps the next call has a better codec."""
        for operation in collective.operations:
            operation.succeed()
        if self._codec_policy is None:
            return
        seconds = self._clock.time() - collective.begun_at
        codec_jobs = [operation.codec_jobs for operation in collective.operations]
        fingerprint = collective.plan.fingerprint
        for index, decision in self._codec_policy.finished(fingerprint, codec_jobs, seconds, self.ledgers):
            self._announcements.codec_choice(fingerprint, index, decision)

    def _job_failed(self, peer: int | None, error: Exception) -> None:
        self.peer_loss.give_up_on(self._rank if peer is None else peer, error)

    # -- from below

    def landing(self, lane: LaneLike, header: Header, here: memoryview | None = None) -> memoryview | None:
        """Where the payload of a large frame goes; `here`: stay where it lies. None: not yet, the lane must wait."""
        if header.epoch != self._epoch:
            return self._sharing.others.landing(lane, header, here)
        if not DATA <= header.kind <= LAST_OF_COLLECTIVES:
            raise misplaced(lane.peer, header)
        collective = self._open.get(header.collective)
        if header.kind != DATA:
            return memoryview(bytearray(header.payload_bytes))
        if lane.index == 0:
            return here or lane.scratch.take(header.payload_bytes)
        if collective is None and not self._is_to_come(header.collective):
            return lane.scratch.take(header.payload_bytes)  # of a collective that is over here: nobody needs it
        if collective is None or not collective.begun or collective.gated:
            if self._paused.unordered or not self._sharing.ordered:
                return memoryview(bytearray(header.payload_bytes))
            self._paused.pause(lane)
            return None
        if header.fingerprint != collective.fingerprint:
            return lane.scratch.take(header.payload_bytes)  # disputed when it has arrived
        operation = collective.operation(header.bucket, lane.peer)
        operation.check(lane.peer, header)  # and again when all of it is here: its like may come on another lane first
        return operation.landing(lane, header, here)

    def ended(self, lane: LaneLike) -> None:
        """A lane has ended as it should. When all lanes of a peer have, its link tells `PeerLoss.stream_ended`."""

    def lost(self, lane: LaneLike, reason: Exception) -> None:
        """A lane has ended, and not as it should."""
        self._sharing.others.lost(lane, reason)
        if lane.index == 0:
            self.peer_loss.give_up_on(lane.peer, reason)
        else:
            self.peer_loss.other_lane_ended(lane.peer, reason)

    def arrived(self, lane: LaneLike, header: Header, payload: memoryview) -> None:
        collective = self._open.get(header.collective)
        if collective is not None and collective.begun and header.kind == DATA and header.epoch == self._epoch:
            self._hear_data(lane, collective, header, payload)
        else:
            self._hear_anything(lane, collective, header, payload)

    def _hear_anything(
        self, lane: LaneLike, collective: Collective | None, header: Header, payload: memoryview
    ) -> None:
        if header.epoch != self._epoch:
            self._sharing.others.arrived(lane, header, payload)
        elif not DATA <= header.kind <= LAST_OF_COLLECTIVES:
            raise misplaced(lane.peer, header)
        elif header.kind == DATA:
            if collective is not None or self._is_to_come(header.collective):
                self._early.keep(lane, header, payload)
            # else: of a collective that is over here, and nobody needs it
        elif header.kind == FrameKind.GOODBYE:
            self.peer_loss.hear_goodbye(lane.peer, *read_goodbye(payload))
        elif header.kind == FrameKind.LOST:
            self.peer_loss.hear_of_loss(lane.peer, words_in(payload))
        elif header.kind == FrameKind.CHOICE:
            self._hear_choice(lane.peer, header, payload)
        elif collective is not None:
            self._hear_news(lane, collective, header, payload)
        elif self._is_to_come(header.collective):
            self._early.keep(lane, header, payload)

    def _is_to_come(self, number: int) -> bool:
        """May a collective of this number still be called here?"""
        is_over = self.peer_loss.over is not None and self.peer_loss.is_over_for(number)
        return self.channels.is_ahead(number) and not is_over

    def _hear_data(self, lane: LaneLike, collective: Collective, header: Header, payload: memoryview) -> None:
        if collective.gated and lane.index > 0:
            self._early.keep(lane, header, payload)  # it has no payload, else it would have waited on its lane
            return
        if header.fingerprint != collective.fingerprint:
            self._announcements.dispute(collective)
            return
        operations = collective.operations
        operation = operations[0] if header.bucket == 0 else collective.operation(header.bucket, lane.peer)
        if operation.express == (lane.index > 0):
            raise RemoteProtocolError(f"rank {lane.peer} sent a frame of {collective.plan.what} on lane {lane.index}")
        operation.check(lane.peer, header)
        operation.arrived(lane, header, payload)

    def _hear_news(self, lane: LaneLike, collective: Collective, header: Header, payload: memoryview) -> None:
        peer = lane.peer
        if header.kind == FrameKind.DISPUTE:
            self._announcements.dispute(collective)
            if header.fingerprint != collective.fingerprint:
                self._end(collective, mismatch_error(collective, self._rank, peer, payload))
        elif header.kind == FrameKind.TIMEOUT:
            self._end(collective, told_timeout(collective, peer, payload))
        else:
            self._end(collective, abort_error(collective, peer, payload))

    def _hear_choice(self, peer: int, header: Header, payload: memoryview) -> None:
        if self._codec_policy is None:
            raise RemoteProtocolError(f"rank {peer} chose a codec for a ring that has none")
        self._codec_policy.on_choice(peer, header.fingerprint, words_in(payload))

    def _doom(self, finished: Mapping[int, int], error: RingwideError) -> None:
        """End every collective that is not among those finished."""
        doomed = [collective for _, collective in sorted(self._open.items()) if collective.is_after(finished)]
        self._line = deque(collective for collective in self._line if not collective.is_after(finished))
        for collective in doomed:
            self._end(collective, fresh(error))
        self._paused.resume()  # what waits there for a call that can never come is in the way of what comes after it

    def _give_up(self, collective: Collective) -> None:
        """Its time is up."""
        missing = self.deadlines.missing_from(collective)
        self._announcements.timeout(collective, missing, self.deadlines.timeout_seconds)
        self._end(collective, timeout_error(collective, missing, self.deadlines.timeout_seconds))
