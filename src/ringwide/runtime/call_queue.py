"""Call queue: gives each call its place in the order when it is made, whatever becomes of it afterwards.

A method of the ring makes a `Call`. From then on it has a place: it begins at once, or when those before it on its
channel let it. What fails here is a refusal at that place, of which the others hear under its number.

Rules:
- A call that is cancelled, closed, dropped or awaited on another loop is given up: its memory is the caller's again, as
  it was before, and the others hear of it.
- Results are written into packed tensors when the caller goes on, all of them or none. From the call until then the
  memory is ours.
- Nothing refers from a call to its error once it was raised, so that nothing waits for the garbage collector.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from time import perf_counter
from typing import Any, Generic, Protocol, TypeVar

from ringwide.collectives.call_kinds import Prepared, reason_of
from ringwide.collectives.dispatcher import Dispatcher
from ringwide.collectives.running_collective import WINDOW, Channel, Collective, sequence_of
from ringwide.errors import RingClosed, TensorInUse, fresh
from ringwide.runtime.call import Call, Failed, UnderWay
from ringwide.runtime.caller_identity import MASK, NO_TASK, STRIDE, UNKNOWN, Caller, Callers, Descent, acting_for
from ringwide.tensors.bucket import EMPTY_BUCKET
from ringwide.tensors.memory_claims import Claimant, MemoryClaims

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
_LEFT = "this ring has been left; use it inside its `async with ringwide.join(...)` block"
_UNKNOWN = (
    "a call was made by a callback of the event loop, or in a task that was not made by the one that joined or by its "
    "tasks, so that other ranks cannot know its place in the order of calls; make it there, or name a channel= for it"
)


class Refusal(Exception):
    """Why a call cannot take part, though the others may already wait for it."""

    def __init__(self, reason: str, error: Callable[[int], Exception]) -> None:
        super().__init__(reason)
        self.reason = reason
        """What the others are told."""
        self.error = error
        """What the caller gets, given the number that the call has all the same."""


Prepare = Callable[[bool], Prepared[T]]
"""prepare(gated): what a call brings; `gated` on a named channel."""


class OpenMessage(UnderWay[T_co], Claimant, Protocol[T_co]):
    """A message to or from another rank."""

    on_settled: Callable[[], object]
    """To be called when its caller has its memory again."""

    def begin(self) -> None: ...


class _Entry(Generic[T]):
    """One call, from the moment it is made."""

    refusal: Refusal | None = None
    prepared: Prepared[T] | None = None  # what it brings, when that is known
    number = 0  # when it has one
    collective: Collective | None = None  # while it is open
    succeeded: Collective | None = None
    outcome: asyncio.Future[None] | None = None  # for its task to await, if it has to
    given_up: str | None = None  # before its turn came: why
    lingers = False  # its answer may be there before its task could sleep
    ended = False  # its collective has
    over = False
    error: Exception | None = None

    def __init__(self, calls: "CallQueue", queue: "_Queue", caller: Caller) -> None:
        self._calls, self.queue, self._caller = calls, queue, caller
        count = self._count = caller.calls = caller.calls + 1
        self.bits = (caller.seed + count * STRIDE) & MASK
        """What this call is known by: 64 bits, to be mixed with what it asks for."""

    def __str__(self) -> str:
        """Who made it."""
        return f"call {self._count} of {self._caller.title}"

    @property
    def is_of_unknown(self) -> bool:
        return self._caller.title is UNKNOWN

    def give_up(self, cause: BaseException) -> None:
        self._calls.give_up(self, cause)

    def settle(self) -> T:
        return self._calls.settle(self)


class _Queue:
    """The calls of one channel whose turn has not come, and how many are under way."""

    __slots__ = ("callers", "channel", "running", "waiting")

    def __init__(self, channel: Channel, callers: Callers) -> None:
        self.channel, self.callers = channel, callers
        self.waiting: deque[_Entry[Any]] = deque()
        self.running = 0


class CallQueue:
    """Gives calls their numbers in the order in which they were made, whatever becomes of them meanwhile."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        *,
        looks: Mapping[int, Callable[[], bool]],
        linger_seconds: float,
        leaving: Callable[[], bool],
        descent: Descent | None = None,
        time: Callable[[], float] = perf_counter,
    ) -> None:
        """`looks`: of each peer, how to look for what has come on its express lane without waiting for the loop."""
        self.time = time
        self._dispatcher, self._looks, self._linger_seconds = dispatcher, looks, linger_seconds
        self._leaving = leaving  # this process was told to end
        self.loop = asyncio.get_running_loop()
        self.thread = threading.get_ident()
        self._queues = {"": _Queue(dispatcher.channels.default, Callers(descent or Descent()))}
        self.claims = MemoryClaims()
        self._running = 0
        self._running_since = self._running_seconds = 0.0
        self.turned_at = time()
        self.made = 0
        self.left = False

    def joined_by(self, who: object) -> None:
        """It is not the task that joined, but somebody for whom that did."""
        self._queues[""].callers.adopt(who)

    @property
    def running_seconds(self) -> float:
        """The time in which any call was under way."""
        now = self.time() - self._running_since if self._running else 0.0
        return self._running_seconds + now

    # -- a call is made

    def make(self, prepare: Prepare[T], channel: str = "") -> Call[T]:
        """A call that brings what `prepare` returns. Whatever that raises is a refusal."""
        behalf = acting_for.get()
        if behalf is not None:
            channel = channel or behalf.channel
        queue = self._queues.get(channel) if isinstance(channel, str) else None
        if queue is None:
            queue, prepare = self._new_queue(channel, prepare)
        if threading.get_ident() != self.thread:
            self._refuse_thread(queue)
        who = (asyncio.current_task(self.loop) or NO_TASK) if behalf is None else behalf.who
        callers = queue.callers
        entry: _Entry[T] = _Entry(self, queue, callers.last_caller if callers.last() is who else callers.find(who))
        queue.waiting.append(entry)
        try:
            self._prepare(entry, prepare)
            self._start_waiting(queue)
            return Call(entry, self)
        except BaseException as cause:  # of a signal's handler, for example: nobody will ever hold this call
            self.give_up(entry, cause)
            self._start_waiting(queue)
            raise

    def _prepare(self, entry: _Entry[T], prepare: Prepare[T]) -> None:
        try:
            if self.left:
                raise RingClosed(_LEFT)
            if entry.is_of_unknown:
                raise RuntimeError(_UNKNOWN)
            prepared = entry.prepared = prepare(entry.queue.channel.id > 0)
            entry.lingers = prepared.plan.express
            if not self.claims.held:  # no other call, whose memory this one could use too
                self.claims.held[prepared] = None
            elif not self.claims.open(prepared):
                entry.prepared = None
                prepared.discard()
                what = prepared.plan.what + entry.queue.channel.suffix
                raise Refusal("it uses a tensor of another open call", lambda n: TensorInUse(number=n, what=what))
        except Refusal as refusal:
            entry.refusal = refusal.with_traceback(None)
        except Exception as error:
            raised = error.with_traceback(None)
            entry.refusal = Refusal(str(error) or repr(error), lambda _: raised)

    def _new_queue(self, name: object, prepare: Prepare[T]) -> tuple[_Queue, Prepare[T]]:
        """For a channel that is new. If there can be no such channel, the call is refused on the default one."""
        try:
            if not isinstance(name, str):
                raise TypeError(f"channel {name!r} is a {type(name).__name__}; it must be a string")
            queue = self._queues[name] = _Queue(self._dispatcher.channels.named(name), Callers())
        except Exception as error:
            return self._queues[""], partial(_fail, error)
        return queue, prepare

    def _refuse_thread(self, queue: _Queue) -> None:
        """It is a call all the same: without a number for it, later ones would be paired with the wrong ones."""
        reason = "it was made outside of the event loop's thread"
        self.loop.call_soon_threadsafe(self._skip, queue, reason)
        raise RuntimeError(_wrong_thread())

    def _skip(self, queue: _Queue, reason: str) -> None:
        entry: _Entry[Any] = _Entry(self, queue, queue.callers.latest)  # on whose behalf it was made, as a rule
        entry.given_up = reason
        queue.waiting.append(entry)
        self._start_waiting(queue)

    def make_message(self, prepare: "Callable[[], OpenMessage[T]]") -> Call[T]:
        """A message has no number. It is sent or expected from now on, and what fails is this rank's matter."""
        try:
            if threading.get_ident() != self.thread:
                raise RuntimeError(_wrong_thread())
            if self.left:
                raise RingClosed(_LEFT)
            message = prepare()
            if not self.claims.open(message):
                raise TensorInUse(number=0, what=str(message))
            message.on_settled = partial(self.claims.close, message)
            try:
                message.begin()
            except BaseException:
                message.on_settled()
                raise
            return Call(message, self)
        except Exception as error:
            return Call(Failed(fresh(error)), self)

    # -- its turn

    def _start_waiting(self, queue: _Queue) -> None:
        waiting = queue.waiting
        while waiting and queue.running < WINDOW:
            entry = waiting[0]
            if entry.prepared is None and entry.refusal is None and entry.given_up is None:
                return  # what it brings is still being found out, by a call that this one was made in the middle of
            waiting.popleft()
            if self.left:
                self._refuse(entry, lambda _: RingClosed(_LEFT))
            elif entry.given_up is not None:
                self._dispatcher.skip(entry.given_up, queue.channel)
            elif entry.refusal is not None:
                entry.number = self._dispatcher.skip(entry.refusal.reason, queue.channel)
                self._refuse(entry, entry.refusal.error)
            else:
                self._start(entry)

    def _refuse(self, entry: _Entry[Any], error: Callable[[int], Exception]) -> None:
        entry.refusal = None
        self._over(entry, error(sequence_of(entry.number)))

    def _start(self, entry: _Entry[Any]) -> None:
        prepared, queue = entry.prepared, entry.queue
        assert prepared is not None
        if not self._running:
            self._running_since = self.time()
        self._running += 1
        queue.running += 1
        self.made += 1
        entry.number = queue.channel.next
        plan, numbers = prepared.plan, prepared.numbers
        if len(numbers) < len(plan.parts):
            numbers = [*numbers, *[EMPTY_BUCKET] * (len(plan.parts) - len(numbers))]
        on_end = partial(self._end, entry)
        try:
            collective = self._dispatcher.submit(plan, numbers, on_end, channel=queue.channel, mark=entry)
        except Exception as error:  # this call's, though another one's end may have started it
            self._end(entry, error.with_traceback(None))
            return
        if not entry.ended:
            entry.collective = collective
        elif entry.error is None:
            entry.succeeded = collective

    def _end(self, entry: _Entry[Any], error: Exception | None) -> None:
        """Its collective has ended, and so has the call, unless it goes on beyond that."""
        entry.ended = True
        if error is None:
            entry.succeeded = entry.collective
        self._make_room(entry)
        prepared = entry.prepared
        assert prepared is not None
        if not prepared.plain:
            if error is not None:
                prepared.give_up(entry.number, error)
            elif prepared.go_on(entry.number, partial(self._over, entry)):
                return
        self._over(entry, error)

    def _make_room(self, entry: _Entry[Any]) -> None:
        """Its collective is not open any more: another one may be."""
        entry.collective, queue = None, entry.queue
        self._running -= 1
        queue.running -= 1
        if not self._running:
            self._running_seconds += self.time() - self._running_since
        if queue.waiting:
            self.loop.call_soon(self._start_waiting, queue)

    def _over(self, entry: _Entry[Any], error: Exception | None) -> None:
        entry.over, entry.error = True, error
        if entry.outcome is not None and not entry.outcome.done():
            entry.outcome.set_result(None)

    # -- its end

    def settle(self, entry: _Entry[T]) -> T:
        """It is over, and its caller goes on: with the result, or with the error."""
        prepared, error = entry.prepared, entry.error
        entry.prepared = entry.error = None
        try:
            if error is not None:
                if prepared is not None:
                    prepared.discard()
                raise error
            assert prepared is not None
            return prepared.value if prepared.plain else self._commit(entry, prepared)
        finally:
            if prepared is not None:
                self.claims.held.pop(prepared, None)
            del error, prepared

    def _commit(self, entry: _Entry[T], prepared: Prepared[T]) -> T:
        try:
            prepared.check()
        except BaseException:
            self._undo(entry)
            prepared.discard()
            raise
        try:
            return prepared.commit()
        except BaseException:  # of a signal's handler: nothing may stay half written
            prepared.commit()
            raise
        finally:
            prepared.give_back()

    def give_up(self, entry: _Entry[Any], cause: BaseException) -> None:
        """Its caller does not want it any more, and finds its tensors as they were."""
        prepared, entry.prepared, entry.error = entry.prepared, None, None
        if entry.collective is not None:
            self._dispatcher.abort(entry.collective, reason_of(cause), leaving=self._leaving())
            self._make_room(entry)
        elif not entry.number:
            entry.given_up = reason_of(cause)
        if prepared is not None:
            if entry.number and not entry.over:
                prepared.give_up(entry.number, cause)
            self._undo(entry)
            prepared.discard()
            self.claims.close(prepared)
        entry.over = True

    def _undo(self, entry: _Entry[Any]) -> None:
        if entry.succeeded is not None:
            entry.succeeded.undo()
            entry.succeeded = None

    # -- waiting

    def linger(self, entry: _Entry[Any]) -> None:
        """Look for the answer before going to sleep: to wake up often takes longer than the answer.

        Without giving the core away between looks: the scheduler would take that for a wish to wait for long.
        """
        if not self._linger_seconds or self._running != 1 or not entry.lingers:
            return
        time = self.time
        while entry.collective is not None:
            first, *others = [self._looks[peer] for peer in entry.collective.waiting_for()]
            deadline = time() + self._linger_seconds
            while not (first() or (others and any(look() for look in others))):
                if time() > deadline:
                    return


def _fail(error: Exception, _: bool) -> Any:
    raise error


def _wrong_thread() -> str:
    return (
        f"a call was made in thread {threading.current_thread().name!r}, and its ring lives on another one's event "
        "loop; make it there, or use join_blocking"
    )
