"""A million mutated frames: nothing but `RemoteProtocolError`, and no more memory than the limits allow."""

import random
import tracemalloc
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fuzz import targets
from tests.fuzz.mutation import data_frame, handshake_seeds, mutations, p2p_seeds, sign_seeds, stream_seeds
from tests.fuzz.targets import Broken, frames, handshake, p2p, proof, resealed, sign

from ringwide.protocol.frame import sealed_frame

pytestmark = pytest.mark.timeout(600)  # much is computed

SEALED = [sealed_frame(seed) for seed in stream_seeds()[:4]]
RUNS: dict[str, tuple[Callable[[bytes], object], Sequence[bytes], int]] = {
    "frames": (frames, stream_seeds(), 490_000),
    "sealed frames": (lambda data: frames(data, sealed=True), SEALED, 300_000),
    "frames with checksums that fit": (lambda data: frames(resealed(data), sealed=True), SEALED, 60_000),
    "frames in small pieces": (lambda data: frames(data[:300], step=7, patient=False), stream_seeds(), 20_000),
    "p2p": (p2p, p2p_seeds(), 10_000),
    "handshakes": (handshake, handshake_seeds(), 60_000),
    "handshakes with checksums that fit": (lambda data: handshake(resealed(data)), handshake_seeds(), 40_000),
    "signs of life": (sign, sign_seeds(), 10_000),
    "proofs": (proof, [seed[-100:] for seed in handshake_seeds()], 10_000),
}
MEMORY_BYTES = 1024 * 1024
"""Some of it are endpoints that the collector has not come to yet."""


def test_it_is_a_million() -> None:
    assert sum(count for _, _, count in RUNS.values()) == 1_000_000


@pytest.mark.parametrize("name", RUNS)
def test_mutated_frames(name: str) -> None:
    target, seeds, count = RUNS[name]
    understood = 0
    for number, data in enumerate(mutations(seeds, random.Random(name), count)):
        try:
            understood += bool(target(data))
        except Exception as error:
            pytest.fail(f"{name}, number {number}: {error!r} from {data!r}")
    assert 0 < understood < count  # else they were not frames any more, or none was damaged


@pytest.mark.parametrize("name", RUNS)
def test_memory_is_bounded(name: str) -> None:
    target, seeds, _ = RUNS[name]
    target(seeds[0])
    tracemalloc.start()
    try:
        for data in mutations(seeds, random.Random(f"memory {name}"), 3_000):
            target(data)
        assert tracemalloc.get_traced_memory()[1] < MEMORY_BYTES
    finally:
        tracemalloc.stop()


@given(
    payloads=st.lists(st.binary(max_size=1500), max_size=5),
    rest=st.binary(max_size=200),
    step=st.integers(1, 3000),
    patient=st.booleans(),
    sealed=st.booleans(),
)
@settings(max_examples=300)
def test_whole_frames_are_heard_whatever_follows_them(
    payloads: list[bytes], rest: bytes, step: int, patient: bool, sealed: bool
) -> None:
    whole = [data_frame(payload) for payload in payloads]
    stream = b"".join(sealed_frame(frame) if sealed else frame for frame in whole) + b"\0" + rest
    assert frames(stream, sealed=sealed, step=step, patient=patient) == len(payloads)


@given(data=st.binary(max_size=600), target=st.sampled_from(targets.TARGETS))
@settings(max_examples=500)
def test_any_bytes_at_all(data: bytes, target: Callable[[bytes], object]) -> None:
    target(data)


def test_a_broken_promise_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: a reader that believes any length would be caught."""
    monkeypatch.setattr(targets, "LIMIT_BYTES", 16)
    listener = targets.Listener(patient=False)
    claims = targets.Header(0, 2, 16, 0, 0, 0, 0, 0, 0, 0, payload_bytes=17, payload_check=0, header_check=0)
    with pytest.raises(Broken, match="17 bytes"):
        listener.landing(claims)
