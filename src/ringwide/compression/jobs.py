"""Codec jobs: one segment's script as one job, which decodes, adds, divides and encodes; and the pool that runs them.

Rules:
- A job touches only the numbers of its own segment, so jobs of different segments may run at the same time.
- The owner of a total encodes it once and keeps what its own payload decodes to. All other ranks pass that payload on
  unchanged. So all ranks end with the same bits, whatever the codec loses.
- Sums are computed in the bucket's own precision. Only payloads are narrow.
- A lossy codec encodes numbers, not narrowed bits. So if a lossy codec carried a total of half precision, every rank
  narrows it after decoding, with the same result everywhere. Any other total is narrowed by its owner.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from enum import Enum, auto
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from ringwide.compression.autotune import RAW, shrinks
from ringwide.compression.codecs.base import Array, Codec
from ringwide.compression.feedback import Feedback
from ringwide.protocol.frame import Header
from ringwide.protocol.instruction import Finish, Keep, Relay, Script, Send
from ringwide.tensors.bucket import Bucket, bytes_of

SAMPLED_SEGMENTS = 4
"""Number of segments that are sampled before a bucket is encoded."""

_of_thread = threading.local()


class JobResult(NamedTuple):
    """Result of a job: the payload to send on, if there is one, and the time it took."""

    payload: memoryview | None
    codec: int
    decode_seconds: float
    encode_seconds: float


class End(Enum):
    """Outcome of a collective."""

    SUCCEEDED = auto()
    FAILED = auto()
    UNDONE = auto()  # after it had succeeded


class CodecJobs:
    """The jobs of one bucket in one collective, with the codecs and the error feedback that they use."""

    def __init__(
        self,
        *,
        numbers: Bucket,
        encoder: Codec | None,
        decoder: Callable[[int], Codec | None],
        threshold_bytes: int,
        may_lose: bool,
        feedback: Feedback | None,
        keeps_errors: bool,
        on_end: Callable[["CodecJobs", End], None],
        time: Callable[[], float],
    ) -> None:
        self.numbers, self.may_lose, self.feedback = numbers, may_lose, feedback
        self.codec_name = "none" if encoder is None else encoder.name
        self.keeps_errors = keeps_errors  # else the last error is added now, and no new one is kept
        self._encoder, self._decoder, self._threshold = encoder, decoder, max(1, threshold_bytes)
        self._on_end, self._time = on_end, time

    def sample(self, departing: Sequence[slice]) -> None:
        """Sample the segments that this rank sends first. If none shrinks, the whole bucket travels raw this time."""
        if self._encoder is None or self._encoder.lossy or not departing:
            return
        sampled = departing[:: max(1, len(departing) // SAMPLED_SEGMENTS)]
        if not any(shrinks(self._encoder, self.numbers.ours[segment]) for segment in sampled):
            self._encoder = None

    def check(self, header: Header, raw_bytes: int) -> str:
        """Description of what is wrong with the header of an encoded frame. Empty: nothing is."""
        codec = self._decoder(header.codec)
        if codec is None:
            return f"with the unknown codec number {header.codec}"
        if not codec.carries(self.numbers.ours.dtype):
            return f"with codec {codec.name}, which does not carry {self.numbers.ours.dtype}"
        if codec.lossy and not self.may_lose:
            return f"with codec {codec.name}, which loses precision, and that is not allowed here"
        if not 0 < header.payload_bytes < raw_bytes:
            return f"with codec {codec.name} in {header.payload_bytes} bytes, where {raw_bytes} are raw"
        return ""

    def takes(self, script: Script, raw_bytes: int) -> bool:
        """Whether a segment that came raw, or that starts here, needs a job."""
        if isinstance(script[0], Keep):
            return False
        goes_on = isinstance(script[-1], (Send, Relay))
        return (goes_on and self._encodes(raw_bytes)) or (self.feedback is not None and raw_bytes > 0)

    def _encodes(self, raw_bytes: int) -> bool:
        return self._encoder is not None and raw_bytes >= self._threshold

    # -- the job

    @np.errstate(all="ignore")  # infinity and NaN are ordinary results
    def carry_out(self, script: Script, segment: slice, payload: memoryview, codec_number: int) -> JobResult:
        """Carry out a script on the numbers of one segment. Any thread may do this."""
        instruction, goes_on = script[0], isinstance(script[-1], (Send, Relay))
        if isinstance(instruction, Send):
            return self._send(self._own_numbers(segment), segment, 0.0)
        started = self._time()
        if isinstance(instruction, Keep):
            self._keep(payload, codec_number, self.numbers.ours[segment])
            return JobResult(payload if goes_on else None, codec_number, self._time() - started, 0.0)
        arrival = self._arrival(payload, codec_number, segment)
        decode_seconds = self._time() - started
        if isinstance(instruction, Relay):
            return self._send(self._add(arrival, segment, out=arrival), segment, decode_seconds)
        total = self._total(script, arrival, segment)
        if not goes_on:
            self._narrow(total)
            self._clear_error(segment)
            return JobResult(None, RAW, decode_seconds, 0.0)
        return self._send(total, segment, decode_seconds, finished=True)

    def _send(self, value: Array, segment: slice, decode_seconds: float, *, finished: bool = False) -> JobResult:
        started = self._time()
        payload, number = self._encoded(value, segment, finished=finished)
        return JobResult(payload, number, decode_seconds, self._time() - started)

    def _own_numbers(self, segment: slice) -> Array:
        ours = self.numbers.ours[segment]
        if self.feedback is None:
            return ours
        return np.add(ours, self.feedback.last[segment], out=_temporary("value", ours))

    def _arrival(self, payload: memoryview, codec_number: int, segment: slice) -> Array:
        """The decoded arrival, in memory that the job may write to."""
        ours = self.numbers.ours[segment]
        if codec_number == RAW:
            return np.frombuffer(payload, dtype=ours.dtype)
        return self._decode(payload, codec_number, _temporary("value", ours))

    def _keep(self, payload: memoryview, codec_number: int, out: Array) -> None:
        self._decode(payload, codec_number, out)
        codec = self._decoder(codec_number)
        if codec is not None and codec.lossy:
            self._narrow(out)

    def _narrow(self, total: Array) -> None:
        if self.numbers.narrow is not None:
            self.numbers.narrow(total)

    def _decode(self, payload: memoryview, codec_number: int, out: Array) -> Array:
        codec = self._decoder(codec_number)
        assert codec is not None  # checked with the header
        codec.decode(payload, out)
        return out

    def _add(self, arrival: Array, segment: slice, *, out: Array) -> Array:
        self.numbers.combine(arrival, self.numbers.ours[segment], out)
        if self.feedback is not None:
            np.add(out, self.feedback.last[segment], out=out)
        return out

    def _total(self, script: Script, arrival: Array, segment: slice) -> Array:
        total = self._add(arrival, segment, out=self.numbers.ours[segment])
        if Finish() in script and self.numbers.finish is not None:
            self.numbers.finish(total)
        return total

    # -- encoding

    def _encoded(self, value: Array, segment: slice, *, finished: bool) -> tuple[memoryview, int]:
        """Payload and codec number of a value. A finished value is replaced by what the other ranks will decode."""
        loses = self._encoder is not None and self._encoder.lossy
        if finished and not loses:
            self._narrow(value)
        payload = self._try_to_encode(value)
        if payload is None:
            if finished and loses:
                self._narrow(value)
            self._clear_error(segment)
            return self._raw(value), RAW
        assert self._encoder is not None
        if self._encoder.lossy and (finished or self.feedback is not None):
            received = _temporary("received", value)
            self._encoder.decode(payload, received)
            self._remember_error(value, received, segment, self.numbers.weight if finished else 1.0)
            if finished:
                value[...] = received
                self._narrow(value)
        return payload, self._encoder.number

    def _try_to_encode(self, value: Array) -> memoryview | None:
        encoder = self._encoder
        if encoder is None or not self._encodes(value.nbytes):
            return None
        return encoder.encode(value) if encoder.lossy or shrinks(encoder, value) else None

    def _remember_error(self, value: Array, received: Array, segment: slice, weight: float) -> None:
        """Keep the error for the next call. That of a mean is multiplied by the number it was divided by."""
        if self.feedback is None:
            return
        error = np.subtract(value, received, out=self.feedback.next[segment])
        if weight != 1.0:
            np.multiply(error, error.dtype.type(weight), out=error)

    def _clear_error(self, segment: slice) -> None:
        if self.feedback is not None:
            self.feedback.next[segment] = 0

    def _raw(self, value: Array) -> memoryview:
        """The bytes of a value. Those of the bucket are sent without a copy."""
        return bytes_of(value if np.may_share_memory(value, self.numbers.ours) else value.copy())

    # -- the end

    def succeed(self) -> None:
        self._on_end(self, End.SUCCEEDED)

    def abandon(self) -> None:
        self._on_end(self, End.FAILED)

    def undo(self) -> None:
        self._on_end(self, End.UNDONE)


def _temporary(use: str, like: Array) -> Array:
    """Memory of this thread, valid for one job. Fresh memory would cost a page fault every 4 KiB."""
    memory = getattr(_of_thread, use, None)
    if memory is None or memory.nbytes < like.nbytes:
        memory = np.empty(like.nbytes, np.uint8)
        setattr(_of_thread, use, memory)
    return memory[: like.nbytes].view(like.dtype)


# -- running jobs

Job = Callable[[], Any]
Then = Callable[[Any, Exception | None], None]
"""Called with a job's result, or with the error that it raised."""
Settle = Callable[[], object]
"""Returns when the job is not running and never will be. A job of the event loop may still come; it checks itself
whether it is needed."""


class CodecPoolLike(Protocol):
    """Interface of a codec pool for collectives. The simulator has a pool of its own."""

    def run(self, job: Job, then: Then) -> Settle: ...


class CodecPool:
    """Runs jobs in threads; or, without threads, on the event loop, one job at a time with other events between them.

    Rules:
    - The result of a job comes back later, on the event loop, so receiving never waits for a job.
    - Jobs of different segments are independent, and may end in another order than they were submitted.
    """

    def __init__(self, threads: int = 0) -> None:
        self._loop = asyncio.get_running_loop()
        self._jobs: deque[tuple[Job, Then]] = deque()
        self._closed = False
        self.start_threads(threads)

    def start_threads(self, threads: int) -> None:
        """Set the number of threads. It is known only when the other ranks on this machine are."""
        self.threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="ringwide-codec") if threads else None

    def run(self, job: Job, then: Then) -> Settle:
        if self._pool is not None:
            future = self._pool.submit(job)
            future.add_done_callback(partial(self._call_back, then))
            return partial(_cancel_or_wait, future)
        self._jobs.append((job, then))
        if len(self._jobs) == 1:
            self._loop.call_soon(self._do_one)
        return _already_settled

    def close(self) -> None:
        self._closed = True
        self._jobs.clear()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _call_back(self, then: Then, job: Future[Any]) -> None:
        if not self._closed and not job.cancelled():
            self._loop.call_soon_threadsafe(self._report, then, job)

    def _report(self, then: Then, job: Future[Any]) -> None:
        error = job.exception()
        if isinstance(error, Exception):
            then(None, error)
        else:
            then(job.result(), None)

    def _do_one(self) -> None:
        if not self._jobs:
            return
        job, then = self._jobs.popleft()
        if self._jobs:
            self._loop.call_soon(self._do_one)
        do_now(job, then)


def _cancel_or_wait(job: Future[Any]) -> None:
    if not job.cancel():
        wait([job])


def _already_settled() -> None:
    """No job is running: jobs run on the event loop, and so does the caller."""


def do_now(job: Job, then: Then) -> None:
    try:
        result = job()
    except Exception as error:
        then(None, error)
    else:
        then(result, None)
