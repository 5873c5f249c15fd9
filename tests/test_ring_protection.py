"""A ring under each kind of protection: the same sums as without, and damage that a caller hears of."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ringwide
from local_ring import Everyone, error_of, on_every_rank
from ringwide.__main__ import main
from ringwide.protocol.p2p import P2P_LANE
from ringwide.transport.lane import Lane
from ringwide.transport.wire import Views
from transport.certificates import Authority

SMALL, LARGE = 1000, 600_000  # numbers: one express frame, and segments on the bulk lanes
KINDS = ("checksum", "encrypt", "tls")


@pytest.fixture(scope="module")
def protections(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    directory: Path = tmp_path_factory.mktemp("protection")
    key_file = directory / "ring.key"
    assert main(["keygen", str(key_file)]) == 0
    files = Authority().files_in(directory)
    return {
        "checksum": {"checksum": True},
        "encrypt": {"encrypt": True, "key_file": key_file},
        "tls": {"tls": {"cert": files.cert, "key": files.key, "ca": files.ca}},
    }


def numbers(rank: int, count: int) -> Any:
    """Whole, so that every sum is exact."""
    return (np.arange(count, dtype=np.float32) % 1000) * (rank + 1)


@pytest.mark.parametrize("kind", KINDS)
async def test_sums_are_the_same_as_without(kind: str, protections: dict[str, dict[str, Any]]) -> None:
    async def act(ring: ringwide.Ring) -> None:
        for count in (SMALL, LARGE, 1, SMALL):
            found = await ring.allreduce(numbers(ring.rank, count), "sum")
            assert np.array_equal(found, numbers(0, count) * 6)
        await ring.barrier()

    await on_every_rank(3, act, **protections[kind], buffer_bytes=64 * 1024, segment_bytes=300 * 1024, lanes=2)


@pytest.mark.parametrize("kind", KINDS)
async def test_messages_are_protected_too(kind: str, protections: dict[str, dict[str, Any]]) -> None:
    async def act(ring: ringwide.Ring) -> None:
        others = range(ring.size)
        for count in (SMALL, LARGE):
            places = [np.zeros(count, np.float32) for _ in others]
            await ring.exchange([numbers(ring.rank, count)] * ring.size, places)
            assert all(np.array_equal(places[other], numbers(other, count)) for other in others)
        lanes = [link.lanes[P2P_LANE] for link in ring._engine.links.values()]
        assert all(lane.sealed == (kind == "checksum") and lane._wire.plain == (kind == "checksum") for lane in lanes)

    await on_every_rank(3, act, **protections[kind], messages=True, buffer_bytes=64 * 1024, segment_bytes=300 * 1024)


def damage_next(lane: Lane, *, frames: int) -> None:
    """After so many sends a byte of what leaves this lane is another one."""
    take: Callable[[Views], int] = lane._wire.send
    left = frames

    def send(views: Views) -> int:
        nonlocal left
        left -= 1
        return take(views if left != 0 else damaged(views))

    lane._wire.send = send  # type: ignore[misc]


def damaged(views: Views) -> list[bytes]:
    *others, last = map(bytes, views)
    return [*others, last[:-1] + bytes([last[-1] ^ 1])]


@pytest.mark.parametrize(("count", "lane", "sender"), [(SMALL, 0, 1), (LARGE, 1, 0)], ids=["express", "bulk"])
async def test_damage_is_an_error_on_every_rank_and_tensors_are_intact(count: int, lane: int, sender: int) -> None:
    """What is small goes to rank 0 first, the root of the tree."""
    all_know = Everyone(2)

    async def act(ring: ringwide.Ring) -> str:
        await ring.allreduce(numbers(ring.rank, count), "sum")
        if ring.rank == sender:
            damage_next(ring._engine.links[1 - sender].lanes[lane], frames=1)
        while ring.rank != sender and lane == 0 and ring._engine.dispatcher.over is None:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0)  # tells; and the sender must still need something
        mine = numbers(ring.rank, count)
        error = await error_of(ring.allreduce(mine, "sum"))
        assert np.array_equal(mine, numbers(ring.rank, count))
        await all_know.wait()
        return f"{type(error).__name__}: {error}"

    hurt, other = sorted(await on_every_rank(2, act, checksum=True))
    assert hurt.startswith(f"CorruptFrame: from rank {sender}: a frame was damaged on its way: the checksum of its")
    assert other.startswith(f"PeerLost: rank {1 - sender} is lost: ")
