"""Which codec a bucket gets: fixed or found, and never one that loses something where nothing may be lost."""

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from ringwide.collectives.bucket_operation import BucketTask, FrameFields
from ringwide.collectives.compressed_operation import operation_for
from ringwide.collectives.plan import CollectiveKind, Plan, Planner, Request
from ringwide.compression import policy as codec_policy_module
from ringwide.compression.autotune import MEASURED_CALLS, SETTLING_CALLS, Decision, Ledger
from ringwide.compression.codecs.base import Array
from ringwide.compression.codecs.registry import AUTO, LOSSLESS, LOSSY, make
from ringwide.compression.jobs import CodecJobs
from ringwide.compression.policy import CodecPolicy
from ringwide.errors import RemoteProtocolError
from ringwide.tensors.arithmetic import DTYPES, FLOATS, INTEGERS, OPERATIONS, arithmetic_of
from ringwide.tensors.bucket import Bucket, BucketShape, Label

SIZE, COUNT = 4, 8000
PLANNER = Planner(rank=0, size=SIZE, segment_bytes=4096, algorithm="ring", tree_bytes=0)
SMALL = Planner(rank=0, size=SIZE, segment_bytes=4096, algorithm="auto", tree_bytes=64 * 1024)
CALLS_PER_TRIAL = SETTLING_CALLS + MEASURED_CALLS


def codec_policy_of(*codecs: str, rank: int = 0, **settings: Any) -> CodecPolicy:
    chosen = AUTO if settings.get("auto") else [make(name) for name in codecs]
    settings = {"allow_lossy": True, "threshold_bytes": 0, "error_feedback": True, **settings}
    return CodecPolicy(rank=rank, codecs=chosen, time=lambda: 0.0, **settings)


def plan_of(
    kind: CollectiveKind = CollectiveKind.ALLREDUCE, dtype: str = "float32", count: int = COUNT, what: str = "x"
) -> Plan:
    return PLANNER.plan(Request(kind, what, (BucketShape(dtype, count, np.dtype(dtype).itemsize),)))


def numbers_of(dtype: str = "float32", op: str = "mean", *, count: int = COUNT, name: str = "") -> Bucket:
    arithmetic = arithmetic_of(dtype, op, SIZE, half_precision="float32", widened=True)
    ours: Array = np.random.default_rng(1).standard_normal(count).astype(arithmetic.carrier)
    label = Label(name, "what") if name else None
    return arithmetic.bucket(ours, None, label)


def codec_jobs_for(codec_policy: CodecPolicy, numbers: Bucket, plan: Plan | None = None) -> CodecJobs:
    codec_jobs = maybe_jobs_for(codec_policy, plan or plan_of(), numbers)
    assert codec_jobs is not None
    return codec_jobs


class NoPool:
    """Nothing is encoded in these tests."""

    def run(self, job: Any, then: Any) -> Any:
        raise NotImplementedError


NO_POOL = NoPool()


def maybe_jobs_for(codec_policy: CodecPolicy, plan: Plan, numbers: Bucket) -> CodecJobs | None:
    fields = FrameFields(bucket=0, collective=1, fingerprint=plan.fingerprint, epoch=0)
    task = BucketTask(plan.parts[0], numbers, links={}, ledgers={}, fields=fields, on_done=lambda _: None)
    return operation_for(task, plan, codec_policy, NO_POOL, lambda peer, error: None).codec_jobs


# -- fixed


@pytest.mark.parametrize("name", [*LOSSY, *LOSSLESS[1:]])
def test_a_fixed_codec_is_the_codec_of_every_bucket_that_it_carries(name: str) -> None:
    assert codec_jobs_for(codec_policy_of(name), numbers_of()).codec_name == name


@pytest.mark.parametrize("op", OPERATIONS)
@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype != "bfloat16"])
def test_a_lossy_codec_is_for_sums_of_floats_and_nothing_else(dtype: str, op: str) -> None:
    if op == "mean" and dtype in INTEGERS:
        return
    allowed = dtype in FLOATS and op in ("sum", "mean")
    numbers = numbers_of(dtype, op)
    for name in LOSSY:
        codec_jobs = codec_jobs_for(codec_policy_of(name), numbers)
        assert (codec_jobs.codec_name, codec_jobs.may_lose) == ((name, True) if allowed else ("none", False))
    assert codec_jobs_for(codec_policy_of("lz4"), numbers).codec_name == "lz4"


@pytest.mark.parametrize("kind", [CollectiveKind.BROADCAST, CollectiveKind.ALL_GATHER])
@pytest.mark.parametrize("name", LOSSY)
def test_what_is_only_passed_on_loses_nothing(name: str, kind: CollectiveKind) -> None:
    flat = np.ones(COUNT, np.float32)
    codec_jobs = codec_jobs_for(codec_policy_of(name), Bucket(flat, None, np.add), plan_of(kind))
    assert (codec_jobs.codec_name, codec_jobs.may_lose) == ("none", False)


def test_without_permission_there_is_no_lossy_codec() -> None:
    codec_policy = codec_policy_of("bf16", "lz4", allow_lossy=False)
    codec_jobs = codec_jobs_for(codec_policy, numbers_of())
    assert (codec_jobs.codec_name, codec_jobs.may_lose) == ("lz4", False)


def test_buckets_that_do_not_go_round_the_ring_are_not_encoded() -> None:
    small = SMALL.plan(Request(CollectiveKind.ALLREDUCE, "x", (BucketShape("float32", 100, 4),)))
    assert maybe_jobs_for(codec_policy_of("bf16"), small, numbers_of(count=100)) is None
    assert maybe_jobs_for(codec_policy_of("bf16"), plan_of(count=0), numbers_of(count=0)) is None


@pytest.mark.parametrize(("threshold", "codec"), [(4000, "bf16"), (4001, "none")])
def test_a_bucket_whose_segments_are_all_below_the_threshold_travels_raw(threshold: int, codec: str) -> None:
    """8000 numbers of 4 bytes for 4 ranks: 8 segments of 4000 bytes."""
    assert codec_jobs_for(codec_policy_of("bf16", threshold_bytes=threshold), numbers_of()).codec_name == codec


# -- error feedback


def owe(codec_policy: CodecPolicy, label: Label, value: float = 0.25) -> None:
    codec_policy.feedback.replace({label: np.full(COUNT, value, np.float32)})


def test_a_lossy_codec_has_feedback_and_it_is_kept_when_the_collective_succeeds() -> None:
    codec_policy = codec_policy_of("bf16")
    codec_jobs = codec_jobs_for(codec_policy, numbers_of(name="b"))
    assert codec_jobs.feedback is not None
    codec_jobs.feedback.next[:] = 0.5
    codec_jobs.succeed()
    ((label, error),) = codec_policy.feedback.items()
    assert label.name == "b"
    assert (error == 0.5).all()


def test_a_collective_that_fails_leaves_what_was_owed() -> None:
    codec_policy = codec_policy_of("bf16")
    owe(codec_policy, Label("b", "what"))
    codec_jobs = codec_jobs_for(codec_policy, numbers_of(name="b"))
    assert codec_jobs.feedback is not None
    codec_jobs.feedback.next[:] = 9.0
    codec_jobs.abandon()
    ((_, error),) = codec_policy.feedback.items()
    assert (error == 0.25).all()


@pytest.mark.parametrize("name", ["lz4", "zlib"])
def test_a_lossless_codec_pays_what_is_owed_and_then_owes_nothing(name: str) -> None:
    codec_policy = codec_policy_of(name)
    assert codec_jobs_for(codec_policy, numbers_of(name="b")).feedback is None
    owe(codec_policy, Label("b", "what"))
    codec_jobs = codec_jobs_for(codec_policy, numbers_of(name="b"))
    assert codec_jobs.feedback is not None
    assert (codec_jobs.feedback.last == 0.25).all()
    codec_jobs.succeed()
    assert list(codec_policy.feedback.items()) == []


@pytest.mark.parametrize("op", ["min", "max", "prod"])
def test_what_is_owed_to_a_sum_is_not_paid_to_anything_else(op: str) -> None:
    """The same tensors in another operation have the same label."""
    codec_policy = codec_policy_of("bf16")
    owe(codec_policy, Label("b", "what"))
    assert codec_jobs_for(codec_policy, numbers_of(op=op, name="b")).feedback is None
    assert Label("b", "what") in codec_policy.feedback


def test_by_default_only_topk_has_error_feedback() -> None:
    for name in LOSSY:
        feedback = codec_jobs_for(codec_policy_of(name, error_feedback=None), numbers_of(name="b")).feedback
        assert (feedback is not None) == (name == "topk")


def test_error_feedback_can_be_switched_off() -> None:
    assert codec_jobs_for(codec_policy_of("bf16", error_feedback=False), numbers_of(name="b")).feedback is None


def test_numbers_without_a_label_have_no_feedback() -> None:
    assert codec_jobs_for(codec_policy_of("bf16"), numbers_of()).feedback is None


# -- auto


class Ring:
    """Rank 0 decides, rank 1 hears of it. A call takes as long as its codec says."""

    def __init__(self, seconds: dict[str, float], **settings: Any) -> None:
        self.first, self.second = (codec_policy_of(rank=rank, auto=True, **settings) for rank in (0, 1))
        self.seconds = seconds
        self.told: list[Decision] = []

    def call(self, numbers: Bucket, plan: Plan | None = None) -> str:
        """The codec of one call."""
        plan = plan or plan_of()
        jobs = [codec_jobs_for(codec_policy, numbers, plan) for codec_policy in (self.first, self.second)]
        ledgers = {1: Ledger()}
        for index, decision in self.first.finished(
            plan.fingerprint, jobs[:1], self.seconds[jobs[0].codec_name], ledgers
        ):
            self.told.append(decision)
            state = "settled" if decision.settled else "trial"
            self.second.on_choice(0, plan.fingerprint, f"{index} {decision.codec} {state} {decision.reason}")
        assert list(self.second.finished(plan.fingerprint, jobs[1:], 1.0, ledgers)) == []
        assert jobs[0].codec_name == jobs[1].codec_name
        return jobs[0].codec_name

    def settle(self, numbers: Bucket, plan: Plan | None = None) -> str:
        before = len(self.told)
        for _ in range(100):
            self.call(numbers, plan)
            if any(decision.settled for decision in self.told[before:]):
                return self.call(numbers, plan)
        raise AssertionError("it never settled")


SECONDS = {"none": 1.0, "lz4": 0.9, "lz4+shuffle": 0.9, "zlib": 0.9, "bf16": 0.5, "int8": 0.4}


def test_auto_begins_raw_and_all_ranks_follow_what_rank_0_finds() -> None:
    ring = Ring(SECONDS)
    assert ring.call(numbers_of()) == "none"
    assert ring.settle(numbers_of()) == "int8"


def compressible() -> Bucket:
    return numbers_of()._replace(ours=np.zeros(COUNT, np.float32))


@pytest.mark.parametrize("op", ["sum", "max"])
def test_auto_tries_nothing_lossy_where_nothing_may_be_lost(op: str) -> None:
    zeros = numbers_of(op=op)._replace(ours=np.zeros(COUNT, np.float32))
    for settings, numbers in (({"allow_lossy": False}, zeros), ({}, zeros), ({}, compressible()._replace(weight=0.0))):
        ring = Ring(SECONDS, **settings)
        ring.settle(numbers)
        lossy = {decision.codec for decision in ring.told} & set(LOSSY)
        assert bool(lossy) == (op == "sum" and not settings and numbers is zeros)


def test_auto_never_takes_the_largest_few_by_itself() -> None:
    assert "topk" not in {codec.name for codec in AUTO}


def test_each_bucket_has_a_choice_of_its_own() -> None:
    ring, other = Ring(SECONDS), plan_of(what="y")
    integers = numbers_of("int32", "sum")
    assert ring.settle(numbers_of()) == "int8"
    assert ring.call(integers, other) == "none"
    assert {choice.what: choice.codec for choice in ring.first.choices()} == {"allreduce(x)": "int8"}


def test_a_change_of_mind_is_one_line_in_the_log_and_in_the_statistics_of_each_rank(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ring = Ring(SECONDS | {"int8": 0.6})
    with caplog.at_level(logging.INFO, "ringwide.compression"):
        assert ring.settle(numbers_of()) == "bf16"
        lines = list(caplog.messages)
        assert len(lines) == 1  # of the rank that decides
        assert lines[0].startswith("bucket 0 of allreduce(x): codec bf16 instead of none: 0.5 s a call (none 1 s, ")
        caplog.clear()
        ring.seconds = dict.fromkeys(SECONDS, 10.0) | {"int8": 5.0}
        while ring.call(numbers_of()) != "none":
            pass
        assert ring.settle(numbers_of()) == "int8"
        assert len(caplog.messages) == 1
        assert "codec int8 instead of bf16: 5 s a call (" in caplog.messages[0]
        assert "calls took 10 s instead of 0.5 s" in caplog.messages[0]
    for codec_policy in (ring.first, ring.second):
        (choice,) = codec_policy.choices()
        assert (choice.what, choice.bucket, choice.codec) == ("allreduce(x)", 0, "int8")
        assert "calls took 10 s instead of 0.5 s" in choice.reason


def test_a_choice_that_stays_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    ring = Ring(dict.fromkeys(SECONDS, 1.0))
    with caplog.at_level(logging.INFO, "ringwide.compression"):
        assert ring.settle(numbers_of()) == "none"
    assert caplog.messages == []


def test_a_call_that_began_before_a_change_is_not_measured_as_the_new_codec() -> None:
    codec_policy, plan = codec_policy_of(auto=True), plan_of()
    numbers = numbers_of()
    late = [codec_jobs_for(codec_policy, numbers, plan) for _ in range(20)]  # all of them raw
    decisions = [
        decision
        for codec_jobs in late
        for _, decision in codec_policy.finished(plan.fingerprint, [codec_jobs], 1.0, {})
    ]
    assert len(decisions) == 1  # raw was measured; what came later says nothing about the trial
    assert not decisions[0].settled


def test_settings_of_one_codec_need_no_telling() -> None:
    codec_policy, plan = codec_policy_of("bf16"), plan_of()
    for _ in range(50):
        assert (
            list(codec_policy.finished(plan.fingerprint, [codec_jobs_for(codec_policy, numbers_of(), plan)], 1.0, {}))
            == []
        )
    assert codec_policy.choices() == ()


# -- hearing of a choice

HEARD = "0 bf16 settled it is fast"


def test_a_choice_that_is_heard_before_the_call_holds_for_it() -> None:
    codec_policy, plan = codec_policy_of(rank=1, auto=True), plan_of()
    codec_policy.on_choice(0, plan.fingerprint, HEARD)
    assert codec_jobs_for(codec_policy, numbers_of(), plan).codec_name == "bf16"
    (choice,) = codec_policy.choices()
    assert (choice.codec, choice.reason) == ("bf16", "it is fast")


@pytest.mark.parametrize("numbers", [numbers_of("int32", "sum"), numbers_of("float32", "max")])
def test_a_lossy_choice_for_what_may_not_be_lost_changes_nothing(numbers: Bucket) -> None:
    codec_policy, plan = codec_policy_of(rank=1, auto=True), plan_of()
    codec_policy.on_choice(0, plan.fingerprint, HEARD)
    assert codec_jobs_for(codec_policy, numbers, plan).codec_name == "none"


@pytest.mark.parametrize(
    ("peer", "text", "settings"),
    [
        (2, HEARD, {}),
        (0, HEARD, {"allow_lossy": False}),
        (0, "0 topk settled nobody asked for it", {}),
        (0, "0 gzip settled unknown", {}),
        (0, "bf16 0 settled", {}),
        (0, "-1 bf16 settled", {}),
        (0, "² bf16 settled", {}),
        (0, "0", {}),
        (0, "", {}),
        (0, "�" * 1000, {}),
    ],
)
def test_a_choice_that_may_not_be_made_is_refused_by_name(peer: int, text: str, settings: dict[str, Any]) -> None:
    codec_policy = codec_policy_of(rank=1, auto=True, **settings)
    with pytest.raises(RemoteProtocolError, match=f"rank {peer} chose a codec that it may not choose"):
        codec_policy.on_choice(peer, 5, text)
    assert codec_policy.choices() == ()


def test_a_rank_with_a_codec_of_its_own_and_the_one_that_decides_hear_no_choices() -> None:
    for codec_policy in (codec_policy_of("bf16", rank=1), codec_policy_of(auto=True, rank=0)):
        with pytest.raises(RemoteProtocolError):
            codec_policy.on_choice(0, 5, HEARD)


def remembered(codec_policy: CodecPolicy) -> int:
    return max(len(found) for found in vars(codec_policy).values() if isinstance(found, dict))


def test_what_is_remembered_of_choices_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec_policy_module, "CHOICES_REMEMBERED", 20)
    codec_policy = codec_policy_of(rank=1, auto=True)
    for fingerprint in range(100):
        codec_policy.on_choice(0, fingerprint, HEARD)
    assert len(codec_policy.choices()) == 20
    assert remembered(codec_policy) == 20


def test_what_is_remembered_of_buckets_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec_policy_module, "CHOICES_REMEMBERED", 20)
    for rank in (0, 1):
        codec_policy = codec_policy_of(rank=rank, auto=True)
        for number in range(100):
            codec_jobs_for(codec_policy, numbers_of(), plan_of(what=str(number)))
        assert remembered(codec_policy) <= 20


def test_hearing_again_of_what_is_remembered_forgets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec_policy_module, "CHOICES_REMEMBERED", 3)
    codec_policy = codec_policy_of(rank=1, auto=True)
    for fingerprint in (1, 2, 3, 3, 3, 3):
        codec_policy.on_choice(0, fingerprint, HEARD)
    assert len(codec_policy.choices()) == 3


# -- the threshold


def test_the_threshold_follows_what_the_ledgers_say() -> None:
    codec_policy, plan = codec_policy_of("bf16", threshold_bytes=None), plan_of()
    ledger = Ledger(encode_seconds=0.001, decode_seconds=0.001)
    ledger.note_sent(make("bf16").number, 10_000_000, 5_000_000)
    ledger.note_sent(0, 1_000_000, 1_000_000)
    jobs: Sequence[CodecJobs | None] = [codec_jobs_for(codec_policy, numbers_of(), plan)]
    assert list(codec_policy.finished(plan.fingerprint, jobs, 0.06, {1: ledger})) == []
    rate = 6_000_000 / 0.06
    assert codec_policy.threshold.nbytes == pytest.approx(100e-6 / (0.5 / rate - 0.002 / 10_000_000), rel=0.001)
