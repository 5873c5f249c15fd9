"""A rank leaves, or waits, while another computes: real processes, one of which blocks its own event loop."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from local_ring import free_peers
from ringwide.__main__ import main
from transport.certificates import Authority

pytestmark = [pytest.mark.system, pytest.mark.timeout(60)]

PATIENCE_SECONDS = 60
LONGER_THAN_A_GOODBYE_SECONDS = 1.0
COUNT = 60
PROGRAM = """
import asyncio, json, sys, uvloop, numpy, ringwide
rank, peers, settings = json.loads(sys.argv[1])
def compute():
    '''Without a turn of the event loop, until we are told to go on.'''
    print("computing", flush=True)
    sys.stdin.readline()
async def main():
    async with ringwide.join(rank=rank, peers=peers, config=ringwide.RingConfig(**settings)) as ring:
        await ring.barrier()
        {act}
    print("left", flush=True)
uvloop.run(main())
"""
ROOT = f"""[await ring.broadcast(numpy.full(50_000, n, numpy.float32)) for n in range({COUNT})]
        print("done", flush=True)"""
COMPUTES = f"""calls = asyncio.gather(*[ring.broadcast(numpy.zeros(50_000, numpy.float32)) for n in range({COUNT})])
        await asyncio.sleep(0)
        compute()
        tensors = await calls
        print([float(tensor.mean()) for tensor in tensors], flush=True)"""


@contextmanager
def program(rank: int, peers: list[str], settings: dict[str, Any], act: str) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-c", PROGRAM.format(act=act), json.dumps([rank, peers, settings], default=str)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:  # type: ignore[call-overload]
        try:
            yield process
        finally:
            process.kill()


def heard(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    line: str = process.stdout.readline()
    if not line:
        pytest.fail(f"it has ended: {process.communicate()[1]}")
    return line.strip()


def go_on(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def has_ended_within(process: "subprocess.Popen[str]", seconds: float) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


@pytest.fixture(scope="module")
def ways(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    directory: Path = tmp_path_factory.mktemp("keys")
    files = Authority().files_in(directory)
    assert main(["keygen", str(directory / "ring.key")]) == 0
    return {
        "memory": {},
        "unix": {"same_host": "unix"},
        "tcp": {"same_host": "tcp"},
        "encrypt": {"encrypt": True, "key_file": directory / "ring.key"},
        "tls": {"tls": {"cert": str(files.cert), "key": str(files.key), "ca": str(files.ca)}},
    }


@pytest.mark.parametrize("way", ["memory", "unix", "tcp", "encrypt", "tls"])
def test_what_a_rank_has_sent_before_it_leaves_arrives_at_one_that_computes(
    way: str, ways: dict[str, dict[str, Any]]
) -> None:
    peers = free_peers(2)
    with ExitStack() as stack:
        root = stack.enter_context(program(0, peers, ways[way], ROOT))
        computing = stack.enter_context(program(1, peers, ways[way], COMPUTES))
        assert (heard(computing), heard(root)) == ("computing", "done")
        assert not has_ended_within(root, LONGER_THAN_A_GOODBYE_SECONDS), "nobody has read all that it sent"
        go_on(computing)
        assert heard(computing) == str([float(n) for n in range(COUNT)])
        assert heard(root) == heard(computing) == "left"
        assert [process.wait(PATIENCE_SECONDS) for process in (root, computing)] == [0, 0]


def test_a_rank_that_computes_is_not_lost_when_its_kernel_takes_no_more() -> None:
    """With the express lane full, the kernel of the other counts the time as if nobody were there."""
    settings = {"same_host": "tcp", "user_timeout_seconds": 1, "buffer_bytes": "64KiB"}
    calls = f"ring.allreduce(numpy.ones(30_000)) for _ in range({COUNT})"
    waits = f"calls = asyncio.gather(*[{calls}]); await asyncio.sleep(0); print('called', flush=True); await calls"
    peers = free_peers(2)
    with ExitStack() as stack:
        waiting = stack.enter_context(program(0, peers, settings, waits))
        computing = stack.enter_context(program(1, peers, settings, f"compute(); await asyncio.gather(*[{calls}])"))
        assert (heard(computing), heard(waiting)) == ("computing", "called")
        assert not has_ended_within(waiting, 3.0)  # the time that passes is what is tested
        go_on(computing)
        assert heard(waiting) == heard(computing) == "left"


def test_a_rank_that_is_killed_while_another_waits_to_leave_is_not_waited_for() -> None:
    peers = free_peers(2)
    with ExitStack() as stack:
        root = stack.enter_context(program(0, peers, {}, ROOT))
        computing = stack.enter_context(program(1, peers, {}, COMPUTES))
        assert (heard(computing), heard(root)) == ("computing", "done")
        computing.kill()
        assert heard(root) == "left"
        assert root.wait(PATIENCE_SECONDS) == 0
