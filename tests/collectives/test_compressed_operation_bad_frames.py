"""Frames that no honest peer sends: each ends the ring, names who sent it, and returns nothing."""

import asyncio
import tracemalloc
import zlib
from collections.abc import Callable
from typing import Any

import lz4.block  # type: ignore[import-untyped]
import numpy as np
import pytest

import ringwide
from local_ring import Everyone, error_of, on_every_rank
from ringwide import Ring
from ringwide.collectives.plan import CollectiveKind as Call
from ringwide.compression.codecs.registry import LOSSY, make
from ringwide.protocol.frame import FrameKind, news, pack_data
from ringwide.runtime.caller_identity import MASK, STRIDE

pytestmark = pytest.mark.numbers

SEGMENT = 64 * 1024
COUNT = SEGMENT // 4 * 3  # one segment for each of three ranks
VILLAIN, VICTIM = 0, 1
PATIENCE_SECONDS = 60

SOCKET = {"same_host": "unix"}  # into which the villain writes
LZ4 = {"codec": "lz4", **SOCKET}
BF16 = {"codec": "bf16", "allow_lossy": True, **SOCKET}
AUTO = {"codec": "auto", **SOCKET}

Payload = Callable[[], bytes]


def numbers(rank: int) -> Any:
    return np.repeat(np.random.default_rng(rank).standard_normal(COUNT // 64), 64).astype(np.float32)


def encoded(name: str, array: Any = None) -> bytes:
    payload = make(name).encode(numbers(0)[: COUNT // 3] if array is None else array)
    assert payload is not None
    return bytes(payload)


def data(
    ring: Ring,
    codec: int,
    payload: bytes,
    *,
    op: str = "mean",
    claims: int | None = None,
    hop: int = 1,
    segment: int = 2,
) -> bytes:
    """A frame that the villain owes its successor in its next all-reduce, by default its first, with other content."""
    caller = ring._calls._queues[""].callers.joined
    (call_plan,) = (found for key, found in ring._plans._known.items() if key[0] is Call.ALLREDUCE and key[1] == op)
    header = pack_data(
        codec=codec,
        bucket=0,
        hop=hop,
        epoch=0,
        segment=segment,
        collective=ring._engine.dispatcher.channels.default.next,
        fingerprint=call_plan.plan.fingerprint ^ (caller.seed + (caller.calls + 1) * STRIDE) & MASK,
        payload_bytes=len(payload) if claims is None else claims,
    )
    return header + payload


async def send_whole(ring: Ring, lane: int, sent: bytes) -> None:
    """Past all rules of the own side, straight into the connection."""
    socket = ring._engine.links[VICTIM].lanes[lane].socket
    while sent:
        try:
            sent = sent[socket.send(sent) :]
        except BlockingIOError:
            await asyncio.sleep(0)


async def errors_after(
    make_frame: Callable[[Ring], bytes], settings: dict[str, Any], *, lane: int = 1, op: str = "mean"
) -> list[str]:
    """What ranks 1 and 2 hear when rank 0 sends this instead of taking part."""
    all_ready, all_know = Everyone(3), Everyone(2)

    async def act(ring: Ring) -> str:
        await ring.allreduce(numbers(ring.rank), op)
        await all_ready.wait()  # else the end of the ring could reach somebody who is still in this call
        if ring.rank == VILLAIN:
            await send_whole(ring, lane, make_frame(ring))
            await all_know.watch()
            return ""
        mine, owed = numbers(ring.rank), str(ring.state_dict())
        error = await asyncio.wait_for(error_of(ring.allreduce(mine, op)), PATIENCE_SECONDS)
        assert np.array_equal(mine, numbers(ring.rank))
        assert str(ring.state_dict()) == owed
        if ring.rank == VICTIM:
            assert type(error) is ringwide.RemoteProtocolError
        else:
            assert isinstance(error, ringwide.PeerLost | ringwide.RemoteProtocolError)
        await all_know.wait()
        return str(error)

    ring = {"algorithm": "ring", "segment_bytes": SEGMENT, "threshold_bytes": 0, **settings}
    _, victim, bystander = await on_every_rank(3, act, **ring)
    assert "rank 0" in victim
    assert "rank 0" in bystander
    return [victim, bystander]


BAD_PAYLOADS: dict[str, tuple[str, Payload]] = {
    "zlib cut short": ("zlib", lambda: encoded("zlib")[:-1]),
    "zlib too long": ("zlib", lambda: encoded("zlib") + b"more"),
    "zlib of too few": ("zlib", lambda: encoded("zlib", np.zeros(10_000, np.float32))),
    "zlib of too many": ("zlib", lambda: encoded("zlib", np.zeros(COUNT // 3 + 1, np.float32))),
    "lz4 cut short": ("lz4", lambda: encoded("lz4")[:-1]),
    "lz4 of too many": ("lz4", lambda: encoded("lz4", np.zeros(COUNT, np.float32))),
    "lz4-frame cut short": ("lz4-frame", lambda: encoded("lz4-frame")[:-1]),
    "bf16 cut short": ("bf16", lambda: encoded("bf16")[:-1]),
    "bf16 too long": ("bf16", lambda: encoded("bf16") + b"\0\0"),
    "bf16 not finite": ("bf16", lambda: b"\x80\x7f" + encoded("bf16")[2:]),
    "int8 with a scale that is no number": ("int8", lambda: b"\xff\xff\xff\x7f" + encoded("int8")[4:]),
    "topk with a wrong count": ("topk", lambda: b"\xff\xff\xff\xff" + encoded("topk")[4:]),
    **{f"garbage as {name}": (name, lambda: b"\x5a" * 1000) for name in ("lz4", "lz4-frame", "zlib", "int8", "topk")},
}


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("what", BAD_PAYLOADS)
async def test_a_payload_that_cannot_be_decoded(what: str, threads: int) -> None:
    name, payload = BAD_PAYLOADS[what]
    settings = (BF16 if name in LOSSY else LZ4) | {"codec_threads": threads}
    victim, bystander = await errors_after(lambda ring: data(ring, make(name).number, payload()), settings)
    assert "rank 0 sent segment 2 of collective 3 and its payload cannot be decoded: " in victim
    assert "cannot be decoded" in bystander


BAD_HEADERS: dict[str, tuple[dict[str, Any], Callable[[Ring], bytes], str]] = {
    "an unknown codec": (LZ4, lambda ring: data(ring, 99, b"x" * 100), "with the unknown codec number 99"),
    "a lossy codec where none is allowed": (
        LZ4,
        lambda ring: data(ring, make("bf16").number, encoded("bf16")),
        "with codec bf16, which loses precision, and that is not allowed here",
    ),
    "as long as raw": (
        LZ4,
        lambda ring: data(ring, make("lz4").number, bytes(SEGMENT)),
        f"with codec lz4 in {SEGMENT} bytes, where {SEGMENT} are raw",
    ),
    "nothing": (LZ4, lambda ring: data(ring, make("lz4").number, b""), "with codec lz4 in 0 bytes"),
    "raw, but short": (LZ4, lambda ring: data(ring, 0, bytes(100)), f"in 100 bytes, where it has {SEGMENT}"),
    "encoded where no codec was asked for": (
        {"codec": "none"},
        lambda ring: data(ring, make("lz4").number, encoded("lz4")),
        "with codec number 1, where it must come raw",
    ),
    "more than any segment has": (
        LZ4,
        lambda ring: data(ring, make("lz4").number, b"", claims=1 << 31),
        f"claims {1 << 31} bytes, at most {SEGMENT} are allowed",
    ),
}


@pytest.mark.parametrize("what", BAD_HEADERS)
async def test_a_header_that_breaks_the_rules(what: str) -> None:
    settings, make_frame, words = BAD_HEADERS[what]
    if settings["codec"] == "none":
        settings = settings | {"threshold_bytes": "512KiB"}
    victim, bystander = await errors_after(make_frame, settings)
    assert words in victim
    assert words in bystander
    assert "collective 3" in victim or what == "more than any segment has"


async def test_a_lossy_frame_in_a_maximum_is_refused_though_sums_may_be_lossy() -> None:
    victim, _ = await errors_after(
        lambda ring: data(ring, make("bf16").number, encoded("bf16"), op="max"), BF16, op="max"
    )
    assert "with codec bf16, which loses precision, and that is not allowed here" in victim


async def test_a_small_frame_must_come_raw() -> None:
    all_ready = Everyone(3)

    async def act(ring: Ring) -> None:
        small = np.ones(5, np.float32)
        await ring.allreduce(small)
        await all_ready.wait()
        if ring.rank == VILLAIN:
            await send_whole(ring, 0, data(ring, make("lz4").number, b"12345"))
            await asyncio.wait_for(error_of(ring.barrier()), PATIENCE_SECONDS)
            return
        error = await asyncio.wait_for(error_of(ring.allreduce(small)), PATIENCE_SECONDS)
        assert isinstance(error, ringwide.RemoteProtocolError if ring.rank == VICTIM else ringwide.RingwideError)
        assert "rank 0 sent segment" in str(error) or ring.rank != VICTIM
        assert small.tolist() == [1.0] * 5

    await on_every_rank(3, act, codec="lz4")


BOMB_BYTES = 256 * 1024 * 1024
BOMBS: dict[str, Payload] = {
    "zlib": lambda: zlib.compress(bytes(BOMB_BYTES // 8), 9),
    "lz4": lambda: lz4.block.compress(bytes(12 * 1024 * 1024), store_size=False),
    "zlib+shuffle": lambda: zlib.compress(bytes(BOMB_BYTES // 8), 9),
}


@pytest.mark.parametrize("name", BOMBS)
async def test_a_bomb_does_not_go_off(name: str) -> None:
    bomb = BOMBS[name]()
    number = make(name.removesuffix("+shuffle"), shuffle=name.endswith("shuffle")).number
    assert len(bomb) < SEGMENT
    await errors_after(lambda ring: data(ring, number, bomb), LZ4)  # whatever is made once is there now
    tracemalloc.start()
    try:
        victim, _ = await errors_after(lambda ring: data(ring, number, bomb), LZ4)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "cannot be decoded" in victim
    assert peak < 8 * 1024 * 1024


# -- choices


CHOICES = {
    "a codec that is not allowed": (AUTO, "0 bf16 settled it is fast", "may not choose"),
    "an unknown codec": (AUTO, "0 gzip settled it is fast", "may not choose"),
    "no words": (AUTO, "", "may not choose"),
    "a ring with a codec of its own": (LZ4, "0 lz4 settled it is fast", "may not choose"),
    "a ring without codecs": ({"codec": "none", "threshold_bytes": "512KiB"}, "0 lz4 settled x", "has none"),
}


@pytest.mark.parametrize("what", CHOICES)
async def test_a_choice_that_may_not_be_made(what: str) -> None:
    settings, text, words = CHOICES[what]
    victim, _ = await errors_after(lambda ring: news(FrameKind.CHOICE, text, fingerprint=5), settings, lane=0)
    assert "rank 0 chose a codec" in victim
    assert words in victim


async def test_only_rank_0_chooses() -> None:
    all_ready = Everyone(3)

    async def act(ring: Ring) -> None:
        await all_ready.wait()
        if ring.rank == 2:
            ring._engine.links[1].tell(news(FrameKind.CHOICE, "0 lz4 settled it is fast", fingerprint=5))
        error = await asyncio.wait_for(error_of(ring.allreduce(numbers(ring.rank))), PATIENCE_SECONDS)
        assert "rank 2 chose a codec" in str(error) or ring.rank == 2
        assert isinstance(error, ringwide.RemoteProtocolError if ring.rank == 1 else ringwide.PeerLost)

    await on_every_rank(3, act, algorithm="ring", codec="auto")


async def test_an_honest_choice_holds_for_the_next_call() -> None:
    async def act(ring: Ring) -> None:
        await ring.allreduce(numbers(ring.rank), "sum")
        (call_plan,) = (found for key, found in ring._plans._known.items() if key[0] is Call.ALLREDUCE)
        await ring.barrier()
        if ring.rank == 0:
            ring._engine.links[1].tell(
                news(FrameKind.CHOICE, "0 lz4 settled the test says so", fingerprint=call_plan.plan.fingerprint)
            )
        await ring.barrier()
        result = await ring.allreduce(numbers(ring.rank), "sum")
        assert np.abs(result - sum(numbers(rank) for rank in range(3))).max() < 1e-5
        codecs = {tally.codec for link in ring.statistics().links for tally in link.sent}
        assert ("lz4" in codecs) == (ring.rank in (1, 2))  # rank 2 passes on verbatim what rank 1 has finished

    await on_every_rank(3, act, algorithm="ring", segment_bytes=SEGMENT, threshold_bytes=0, codec="auto")
