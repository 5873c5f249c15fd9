"""A segment's script as one job, and what many jobs make together: a journey round a ring of arrays, without a wire."""

import threading
from collections.abc import Sequence

import numpy as np
import pytest

from ringwide.compression.autotune import RAW
from ringwide.compression.codecs.base import Array, BadPayload
from ringwide.compression.codecs.registry import decoder, make
from ringwide.compression.feedback import Feedback, FeedbackStore
from ringwide.compression.jobs import CodecJobs, End, JobResult
from ringwide.protocol.frame import Header, pack_data, unpack
from ringwide.protocol.instruction import Combine, Finish, Keep, Relay, Script, Send
from ringwide.protocol.ring import Journey, Layout, RingSchedule
from ringwide.tensors.bucket import Bucket, Label, bytes_of

LOSSY = ("bf16", "fp16", "int8", "topk")
LOSSLESS = ("lz4", "lz4-frame", "zlib")
RUBBISH = 1e6
COUNT = 4096
ALL = slice(0, COUNT)

SEND: Script = (Send(1, 1),)
RELAY: Script = (Relay(2, 1),)
TOTAL: Script = (Combine(True), Finish(), Send(3, 1))
LAST_TOTAL: Script = (Combine(True), Finish())
KEEP: Script = (Keep(), Send(4, 1))
LAST_KEEP: Script = (Keep(),)


def noise(seed: int, count: int = COUNT) -> Array:
    return np.random.default_rng(seed).standard_normal(count).astype(np.float32)


def compressible(seed: int, count: int = COUNT) -> Array:
    return np.repeat(noise(seed, -(-count // 64)), 64)[:count].copy()


def codec_jobs_of(
    ours: Array,
    codec: str | None,
    *,
    feedback: Feedback | None = None,
    threshold: int = 0,
    weight: float = 1.0,
    may_lose: bool = True,
) -> CodecJobs:
    def finish(total: Array) -> None:
        np.divide(total, total.dtype.type(weight), out=total)

    return CodecJobs(
        numbers=Bucket(ours.copy(), None, np.add, finish if weight != 1.0 else None, weight),
        encoder=None if codec is None else make(codec),
        decoder=decoder,
        threshold_bytes=threshold,
        may_lose=may_lose,
        feedback=feedback,
        keeps_errors=True,
        on_end=lambda codec_jobs, end: None,
        time=lambda: 0.0,
    )


def encoded(codec: str, numbers: Array) -> memoryview:
    payload = make(codec).encode(numbers)
    assert payload is not None
    return payload


def decoded(carried: JobResult, like: Array) -> Array:
    assert carried.payload is not None
    if carried.codec == RAW:
        return np.frombuffer(carried.payload, like.dtype).copy()
    out, codec = np.empty_like(like), decoder(carried.codec)
    assert codec is not None
    codec.decode(carried.payload, out)
    return out


def through(codec: str, numbers: Array) -> Array:
    """What is left of numbers after their codec."""
    out = np.empty_like(numbers)
    make(codec).decode(encoded(codec, numbers), out)
    return out


def fresh_feedback(last: Array) -> Feedback:
    return Feedback(Label("b", "w"), last, np.full(last.size, RUBBISH, last.dtype))


# -- each script


@pytest.mark.parametrize("codec", LOSSY)
def test_a_segment_that_starts_here_is_encoded_and_the_own_numbers_stay(codec: str) -> None:
    ours = noise(1)
    carried = codec_jobs_of(ours, codec).carry_out(SEND, ALL, memoryview(b""), RAW)
    assert carried.codec == make(codec).number
    assert np.array_equal(decoded(carried, ours), through(codec, noise(1)))
    assert np.array_equal(ours, noise(1))


def test_a_relayed_sum_is_decoded_added_and_encoded_anew() -> None:
    codec_jobs = codec_jobs_of(noise(1), "bf16")
    carried = codec_jobs.carry_out(RELAY, ALL, encoded("bf16", noise(2)), make("bf16").number)
    assert np.array_equal(decoded(carried, noise(1)), through("bf16", through("bf16", noise(2)) + noise(1)))
    assert np.array_equal(codec_jobs.numbers.ours, noise(1)), "a sum on its way is not ours to store"


@pytest.mark.parametrize("codec", LOSSY)
def test_the_owner_keeps_what_its_own_payload_decodes_to(codec: str) -> None:
    codec_jobs = codec_jobs_of(noise(1), codec, weight=4.0)
    carried = codec_jobs.carry_out(TOTAL, ALL, bytes_of(noise(2)), RAW)
    exact = (noise(2) + noise(1)) / np.float32(4.0)
    assert np.array_equal(codec_jobs.numbers.ours, decoded(carried, exact))
    assert np.array_equal(codec_jobs.numbers.ours, through(codec, exact))
    assert not np.array_equal(codec_jobs.numbers.ours, exact)


def test_a_total_that_goes_nowhere_loses_nothing_more() -> None:
    codec_jobs = codec_jobs_of(noise(1), "bf16", weight=2.0)
    carried = codec_jobs.carry_out(LAST_TOTAL, ALL, encoded("bf16", noise(2)), make("bf16").number)
    assert (carried.payload, carried.codec) == (None, RAW)
    assert np.array_equal(codec_jobs.numbers.ours, (through("bf16", noise(2)) + noise(1)) / np.float32(2.0))


@pytest.mark.parametrize("script", [KEEP, LAST_KEEP])
def test_what_is_kept_goes_on_verbatim(script: Script) -> None:
    codec_jobs, payload = codec_jobs_of(noise(1), "bf16"), encoded("bf16", noise(2))
    carried = codec_jobs.carry_out(script, ALL, payload, make("bf16").number)
    assert np.array_equal(codec_jobs.numbers.ours, through("bf16", noise(2)))
    assert carried.codec == make("bf16").number
    assert carried.payload is (payload if script is KEEP else None)


@pytest.mark.parametrize("script", [RELAY, TOTAL, KEEP])
def test_another_codec_than_ours_is_understood(script: Script) -> None:
    """`auto` may have changed its mind: every frame says for itself how it is encoded."""
    codec_jobs = codec_jobs_of(noise(1), "bf16")
    carried = codec_jobs.carry_out(script, ALL, encoded("int8", noise(2)), make("int8").number)
    assert carried.codec == make("int8" if script is KEEP else "bf16").number
    arrived = through("int8", noise(2))
    expected = arrived if script is KEEP else through("bf16", arrived + noise(1))
    assert np.array_equal(decoded(carried, noise(1)), expected)


@pytest.mark.parametrize("script", [RELAY, TOTAL])
def test_a_rank_that_does_not_encode_passes_sums_on_raw(script: Script) -> None:
    codec_jobs = codec_jobs_of(noise(1), None)
    carried = codec_jobs.carry_out(script, ALL, encoded("bf16", noise(2)), make("bf16").number)
    assert carried.codec == RAW
    assert np.array_equal(decoded(carried, noise(1)), through("bf16", noise(2)) + noise(1))


def test_a_job_touches_its_own_segment_only() -> None:
    middle = slice(1000, 3000)
    given = fresh_feedback(np.zeros(COUNT, np.float32))
    codec_jobs = codec_jobs_of(noise(1), "bf16", feedback=given)
    codec_jobs.carry_out(TOTAL, middle, bytes_of(noise(2, 2000)), RAW)
    for array, before in ((codec_jobs.numbers.ours, noise(1)), (given.next, RUBBISH)):
        changed = np.flatnonzero(array != before)
        assert (changed.min(), changed.max(), changed.size) == (1000, 2999, 2000)


def test_jobs_of_different_segments_may_run_at_the_same_time() -> None:
    count, cut = 1 << 16, 1 << 11
    codec_jobs = codec_jobs_of(noise(1, count), "int8")
    results: dict[int, JobResult] = {}

    def work(start: int) -> None:
        for first in range(start, count, 4 * cut):
            segment = slice(first, first + cut)
            results[first] = codec_jobs.carry_out(TOTAL, segment, bytes_of(noise(first, cut)), RAW)

    threads = [threading.Thread(target=work, args=(start * cut,)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for first, carried in results.items():
        exact = noise(first, cut) + noise(1, count)[first : first + cut]
        assert np.array_equal(decoded(carried, exact), through("int8", exact))
        assert np.array_equal(codec_jobs.numbers.ours[first : first + cut], through("int8", exact))


def test_what_was_sent_raw_stays_what_it_was_when_the_next_job_runs() -> None:
    """The memory of a job is used again by the next one in the same thread."""
    codec_jobs = codec_jobs_of(noise(1), "bf16", threshold=1 << 30)
    first = codec_jobs.carry_out(RELAY, ALL, bytes_of(noise(2)), RAW)
    codec_jobs.carry_out(RELAY, ALL, encoded("bf16", noise(3)), make("bf16").number)
    assert np.array_equal(decoded(first, noise(1)), noise(2) + noise(1))


# -- what travels raw


@pytest.mark.parametrize("codec", LOSSY)
@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("script", [SEND, RELAY, TOTAL])
def test_a_segment_with_a_number_that_is_not_finite_travels_raw(codec: str, odd: float, script: Script) -> None:
    ours = noise(1)
    ours[77] = odd
    given = fresh_feedback(noise(3))
    codec_jobs = codec_jobs_of(ours, codec, feedback=given)
    payload = memoryview(b"") if script is SEND else bytes_of(noise(2))
    carried = codec_jobs.carry_out(script, ALL, payload, RAW)
    exact = ours + noise(3) if script is SEND else (noise(2) + ours) + noise(3)
    assert carried.codec == RAW
    assert decoded(carried, ours).tobytes() == exact.tobytes()
    assert (given.next == 0).all()  # nothing was lost, and what was owed is paid


@pytest.mark.parametrize("codec", LOSSLESS)
def test_what_does_not_shrink_travels_raw(codec: str) -> None:
    chaos = np.random.default_rng(5).integers(0, 1 << 32, COUNT, np.uint32).view(np.float32)
    carried = codec_jobs_of(chaos, codec).carry_out(SEND, ALL, memoryview(b""), RAW)
    assert carried.codec == RAW
    assert decoded(carried, chaos).tobytes() == chaos.tobytes()


def test_segments_below_the_threshold_travel_raw() -> None:
    for threshold, number in ((4 * COUNT, make("bf16").number), (4 * COUNT + 1, RAW)):
        codec_jobs = codec_jobs_of(noise(1), "bf16", threshold=threshold)
        assert codec_jobs.carry_out(SEND, ALL, memoryview(b""), RAW).codec == number


def test_a_look_at_numbers_that_do_not_shrink_spares_the_bucket() -> None:
    chaos = np.random.default_rng(5).integers(0, 1 << 32, COUNT, np.uint32).view(np.float32)
    halves = [slice(0, COUNT // 2), slice(COUNT // 2, COUNT)]
    for ours, taken in ((chaos, False), (compressible(1), True)):
        codec_jobs = codec_jobs_of(ours, "lz4")
        codec_jobs.sample(halves)
        assert codec_jobs.takes(SEND, 2 * COUNT) is taken
    half_and_half = np.concatenate([chaos[: COUNT // 2], compressible(1, COUNT // 2)])
    codec_jobs = codec_jobs_of(half_and_half, "lz4")
    codec_jobs.sample(halves)
    assert codec_jobs.takes(SEND, 2 * COUNT)


def test_a_lossy_codec_needs_no_look() -> None:
    codec_jobs = codec_jobs_of(noise(1), "bf16")
    codec_jobs.sample([ALL])
    assert codec_jobs.takes(SEND, 4 * COUNT)


@pytest.mark.parametrize(
    ("script", "taken"),
    [(SEND, True), (RELAY, True), (TOTAL, True), (LAST_TOTAL, False), (KEEP, False), (LAST_KEEP, False)],
)
def test_what_comes_raw_needs_a_job_only_if_it_goes_on_encoded(script: Script, taken: bool) -> None:
    assert codec_jobs_of(noise(1), "bf16").takes(script, 4 * COUNT) is taken
    assert not codec_jobs_of(noise(1), None).takes(script, 4 * COUNT)
    assert not codec_jobs_of(noise(1), "bf16", threshold=1 << 30).takes(script, 4 * COUNT)


@pytest.mark.parametrize("script", [SEND, RELAY, TOTAL, LAST_TOTAL])
def test_where_something_is_owed_every_sum_needs_a_job(script: Script) -> None:
    codec_jobs = codec_jobs_of(noise(1), None, feedback=fresh_feedback(noise(2)))
    assert codec_jobs.takes(script, 4 * COUNT)
    assert not codec_jobs.takes(script, 0)
    assert not codec_jobs.takes(KEEP, 4 * COUNT)


# -- headers of encoded frames


def header(codec: int, payload_bytes: int) -> Header:
    packed = pack_data(
        codec=codec,
        bucket=0,
        hop=1,
        epoch=0,
        segment=0,
        collective=1,
        fingerprint=1,
        payload_bytes=payload_bytes,
    )
    return unpack(packed, limit_bytes=1 << 30)


@pytest.mark.parametrize("name", [*LOSSY, *LOSSLESS])
def test_what_is_wrong_with_a_header_is_said(name: str) -> None:
    number, raw = make(name).number, 4 * COUNT
    codec_jobs = codec_jobs_of(noise(1), "lz4")
    assert codec_jobs.check(header(number, raw - 1), raw) == ""
    assert codec_jobs.check(header(number, 1), raw) == ""
    for nbytes in (0, raw, raw + 1):
        assert (
            codec_jobs.check(header(number, nbytes), raw) == f"with codec {name} in {nbytes} bytes, where {raw} are raw"
        )


@pytest.mark.parametrize("number", [8, 64, 68, 255])
def test_an_unknown_codec_is_named_by_its_number(number: int) -> None:
    assert codec_jobs_of(noise(1), "lz4").check(header(number, 5), 100) == f"with the unknown codec number {number}"


@pytest.mark.parametrize("name", LOSSY)
def test_a_lossy_frame_is_refused_where_nothing_may_be_lost(name: str) -> None:
    number = make(name).number
    exact = codec_jobs_of(noise(1), "lz4", may_lose=False)
    assert exact.check(header(number, 5), 100) == (
        f"with codec {name}, which loses precision, and that is not allowed here"
    )
    integers = codec_jobs_of(np.arange(100), "lz4")
    assert integers.check(header(number, 5), 800) == f"with codec {name}, which does not carry int64"


@pytest.mark.parametrize("name", [*LOSSY, *LOSSLESS])
@pytest.mark.parametrize("script", [RELAY, TOTAL, KEEP])
def test_a_payload_cut_short_or_too_long_is_an_error_of_the_job(name: str, script: Script) -> None:
    payload = bytes(encoded(name, compressible(2)))
    for bad in (payload[:-1], payload + b"\0", payload[: len(payload) // 2], b"\xff"):
        with pytest.raises(BadPayload):
            codec_jobs_of(noise(1), "lz4").carry_out(script, ALL, memoryview(bad), make(name).number)


# -- journeys


class Ranks:
    """A ring of arrays: the jobs of all ranks, and payloads that are carried from one to the next by hand."""

    def __init__(self, size: int, count: int, codec: str | Sequence[str | None], *, segments: int = 2) -> None:
        self.size, self.count = size, count
        self.codecs = [codec] * size if isinstance(codec, str) else list(codec)
        self.layout = Layout(count, 4, size, -(-count // (size * segments)) * 4)
        self.stores = [FeedbackStore() for _ in range(size)]

    def run(
        self, given: Sequence[Array], journey: Journey, *, weight: float = 1.0, feedback: bool = False
    ) -> list[Array]:
        """What every rank has in the end."""
        jobs = [self._codec_jobs(rank, ours, weight, feedback) for rank, ours in enumerate(given)]
        schedules = [RingSchedule(rank=rank, layout=self.layout, journey=journey) for rank in range(self.size)]
        for rank, schedule in enumerate(schedules):
            for segment, script in schedule.departures:
                self._travel(jobs, schedules, rank, segment, script)
        for store, codec_jobs in zip(self.stores, jobs, strict=True):
            if codec_jobs.feedback is not None:
                store.commit(codec_jobs.feedback)
        return [codec_jobs.numbers.ours for codec_jobs in jobs]

    def _codec_jobs(self, rank: int, ours: Array, weight: float, feedback: bool) -> CodecJobs:
        lent = self.stores[rank].borrow(Label("b", "w"), self.count, np.dtype(np.float32)) if feedback else None
        if lent is not None:
            lent.next[:] = RUBBISH  # whatever is not written would show
        return codec_jobs_of(ours, self.codecs[rank], feedback=lent, weight=weight)

    def _travel(
        self, jobs: list[CodecJobs], schedules: list[RingSchedule], rank: int, segment: int, script: Script
    ) -> None:
        place = slice(*self.layout.bounds[segment])
        carried = jobs[rank].carry_out(script, place, memoryview(b""), RAW)
        hop = 0
        while carried.payload is not None:
            rank, hop = (rank + 1) % self.size, hop + 1
            script = schedules[rank].scripts[hop]
            arrived = memoryview(bytearray(carried.payload))
            if carried.codec == RAW and isinstance(script[0], Keep):
                jobs[rank].numbers.ours[place] = np.frombuffer(arrived, np.float32)
                carried = carried._replace(payload=arrived if len(script) > 1 else None)
            else:
                carried = jobs[rank].carry_out(script, place, arrived, carried.codec)


def everyones(size: int, count: int, seed: int = 0) -> list[Array]:
    return [noise(100 * seed + rank, count) for rank in range(size)]


@pytest.mark.parametrize("codec", [*LOSSY, *LOSSLESS])
@pytest.mark.parametrize("size", [2, 3, 5])
def test_all_ranks_end_with_the_same_bits(codec: str, size: int) -> None:
    given = everyones(size, 3001)
    first, *others = Ranks(size, 3001, codec).run(given, Journey.allreduce(size), weight=float(size))
    assert all(first.tobytes() == other.tobytes() for other in others)
    if codec != "topk":
        assert np.abs(first - np.mean(given, axis=0)).max() < 0.1


def test_ranks_with_different_codecs_end_with_the_same_bits() -> None:
    given = everyones(5, 3001)
    first, *others = Ranks(5, 3001, ["bf16", None, "int8", "lz4", "topk"]).run(given, Journey.allreduce(5))
    assert all(first.tobytes() == other.tobytes() for other in others)


@pytest.mark.parametrize("op", ["sum", "mean"])
@pytest.mark.parametrize("codec", LOSSY)
@pytest.mark.parametrize("size", [2, 3, 5])
def test_error_feedback_adds_up(codec: str, size: int, op: str) -> None:
    """Whatever was not delivered is exactly what all ranks still owe together."""
    steps, count, weight = 20, 1111, float(size) if op == "mean" else 1.0
    ranks = Ranks(size, count, codec)
    delivered, asked = np.zeros(count), np.zeros(count)
    for step in range(steps):
        given = everyones(size, count, step)
        delivered += weight * ranks.run(given, Journey.allreduce(size), weight=weight, feedback=True)[0].astype(float)
        asked += np.sum(given, axis=0, dtype=float)
    owed = np.sum([error for store in ranks.stores for _, error in store.items()], axis=0, dtype=float)
    assert np.abs(delivered + owed - asked).max() < 1e-5 * steps * size
    assert np.abs(owed).max() > 1e-3  # else this would say nothing
    without = Ranks(size, count, codec).run(everyones(size, count), Journey.allreduce(size), weight=weight)[0]
    if codec != "topk":  # which may owe a number for many steps
        one_step = np.abs(weight * without - np.sum(everyones(size, count), axis=0)).max()
        assert np.abs(owed).max() < 4 * one_step


@pytest.mark.parametrize("codec", ["bf16", "int8"])
def test_without_error_feedback_errors_pile_up(codec: str) -> None:
    """The same numbers again and again: each step rounds them alike."""
    given, ranks, steps = everyones(3, 1111), Ranks(3, 1111, codec), 40
    exact = steps * np.sum(given, axis=0, dtype=float)
    with_feedback, without = (
        sum(ranks.run(given, Journey.allreduce(3), feedback=feedback)[0].astype(float) for _ in range(steps))
        for feedback in (True, False)
    )
    assert np.abs(with_feedback - exact).max() < np.abs(without - exact).max() / 10


def test_a_rank_that_no_longer_loses_anything_pays_all_it_owes() -> None:
    ranks = Ranks(3, 1111, "int8")
    first = ranks.run(everyones(3, 1111, 1), Journey.allreduce(3), feedback=True)[0]
    ranks.codecs = [None] * 3
    second = ranks.run(everyones(3, 1111, 2), Journey.allreduce(3), feedback=True)[0]
    exact = np.sum(everyones(3, 1111, 1) + everyones(3, 1111, 2), axis=0)
    assert np.abs(first + second - exact).max() < 1e-5
    assert all((error == 0).all() for store in ranks.stores for _, error in store.items())


@pytest.mark.parametrize("codec", [*LOSSY, None])
@pytest.mark.parametrize("size", [2, 4])
def test_a_reduce_scatter_has_feedback_that_adds_up_too(codec: str, size: int) -> None:
    """The owner of a chunk does not send it, so it owes nothing there, and must not keep what was never written."""
    count, steps = 1112, 10
    ranks, delivered, asked = Ranks(size, count, [codec] * size), np.zeros(count), np.zeros(count)
    for step in range(steps):
        given = everyones(size, count, step)
        results = ranks.run(given, Journey.reduce_scatter(size), feedback=True)
        for rank, result in enumerate(results):
            share = slice(*ranks.layout.chunk_bounds(rank))
            delivered[share] += result[share]
        asked += np.sum(given, axis=0, dtype=float)
    owed = np.sum([error for store in ranks.stores for _, error in store.items()], axis=0, dtype=float)
    assert np.abs(delivered + owed - asked).max() < 1e-4 * steps * size


# -- the end


def test_an_end_is_told_with_its_outcome() -> None:
    told: list[tuple[CodecJobs, bool]] = []
    codec_jobs = CodecJobs(
        numbers=Bucket(noise(1), None, np.add),
        encoder=None,
        decoder=decoder,
        threshold_bytes=0,
        may_lose=False,
        feedback=None,
        keeps_errors=False,
        on_end=lambda codec_jobs, end: told.append((codec_jobs, end)),
        time=lambda: 0.0,
    )
    codec_jobs.succeed()
    codec_jobs.undo()
    codec_jobs.abandon()
    assert told == [(codec_jobs, End.SUCCEEDED), (codec_jobs, End.UNDONE), (codec_jobs, End.FAILED)]


def test_seconds_are_those_of_decoding_and_of_encoding() -> None:
    ticks = iter([0.0, 3.0, 10.0, 15.0])
    codec_jobs = codec_jobs_of(noise(1), "bf16")
    codec_jobs._time = lambda: next(ticks)
    carried = codec_jobs.carry_out(RELAY, ALL, encoded("bf16", noise(2)), make("bf16").number)
    assert (carried.decode_seconds, carried.encode_seconds) == (3.0, 5.0)
