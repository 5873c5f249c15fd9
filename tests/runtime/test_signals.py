"""What SIGTERM does to a program that is in a ring: real processes, because a signal is for a whole one."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from local_ring import free_peers

PATIENCE_SECONDS = 100
OTHER = """
import sys, uvloop, numpy, ringwide
async def main():
    async with ringwide.join(rank=0, peers=sys.argv[1:]) as ring:
        print("in", flush=True)
        try:
            await ring.allreduce(numpy.ones(3))
        except ringwide.PeerLeft as error:
            print(error)
uvloop.run(main())
"""
LEAVER = """
import asyncio, signal, sys, uvloop, ringwide
async def main():
    {before}
    try:
        async with ringwide.join(rank=1, peers=sys.argv[1:]) as ring:
            {first}
            print("in", flush=True)
            {inside}
    finally:
        print("cleaned up", flush=True)
    {after}
    print("went on", flush=True)
{run}(main())
"""


@contextmanager
def program(text: str, *peers: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", text, *peers]
    environment = {**os.environ, "PYTHONASYNCIODEBUG": ""}  # which complains of a slow start; others' complaints matter
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def until_it_is_in(process: "subprocess.Popen[str]") -> None:
    assert process.stdout is not None
    if process.stdout.readline() != "in\n":
        pytest.fail(f"it never was in: {process.communicate()[1]}")


def leave(
    number: signal.Signals,
    *,
    before: str = "pass",
    first: str = "pass",
    inside: str = "await asyncio.sleep(600)",
    after: str = "pass",
    run: str = "uvloop.run",
) -> tuple[int, str, str, str]:
    """Exit code and words of a rank that gets a signal while the other waits for it; and what the other saw."""
    peers = free_peers(2)
    text = LEAVER.format(before=before, first=first, inside=inside, after=after, run=run)
    with program(OTHER, *peers) as other, program(text, *peers) as leaver:
        for process in (other, leaver):
            until_it_is_in(process)
        leaver.send_signal(number)
        said, complaints = leaver.communicate(timeout=PATIENCE_SECONDS)
        heard, trouble = other.communicate(timeout=PATIENCE_SECONDS)
    assert trouble == ""
    return leaver.returncode, said, complaints, heard


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("call", ["ring.allreduce(numpy.ones(3))", "ring.allreduce(numpy.ones(10**6))"])
def test_one_that_is_in_the_collective_leaves_and_does_not_only_give_up(number: signal.Signals, call: str) -> None:
    """Three ranks, of which one never calls, so that the two others stay in their collective."""
    peers = free_peers(3)
    leaver = LEAVER.format(before="import numpy", first="pass", inside=f"await {call}", after="pass", run="uvloop.run")
    third = LEAVER.format(
        before="pass", first="pass", inside="await asyncio.sleep(600)", after="pass", run="uvloop.run"
    )
    other = OTHER.replace("ring.allreduce(numpy.ones(3))", call)
    absent = third.replace("rank=1", "rank=2")
    with program(other, *peers) as one, program(leaver, *peers) as two, program(absent, *peers) as three:
        for process in (one, two, three):
            until_it_is_in(process)
        two.send_signal(number)
        heard, trouble = one.communicate(timeout=PATIENCE_SECONDS)
    assert (heard, trouble) == (f"rank 1 left the ring: it was told to end ({number.name})\n", "")


@pytest.mark.parametrize("run", ["uvloop.run", "asyncio.run"])
def test_sigterm_says_goodbye_and_cleans_up_and_ends_the_program(run: str) -> None:
    code, said, complaints, heard = leave(signal.SIGTERM, run=run)
    assert heard == "rank 1 left the ring: it was told to end (SIGTERM)\n"
    assert (code, said, complaints) == (128 + signal.SIGTERM, "cleaned up\n", "")


def test_of_two_rings_both_say_goodbye_even_when_the_first_was_left() -> None:
    peers, others = free_peers(1), free_peers(2)
    before = f"""alone = ringwide.join(rank=0, peers={peers})
    await alone.__aenter__()"""
    first = "await alone.__aexit__(None, None, None)"
    text = LEAVER.format(before=before, first=first, inside="await asyncio.sleep(600)", after="pass", run="uvloop.run")
    with program(OTHER, *others) as other, program(text, *others) as leaver:
        for process in (other, leaver):
            until_it_is_in(process)
        leaver.send_signal(signal.SIGTERM)
        assert other.communicate(timeout=PATIENCE_SECONDS)[0].startswith("rank 1 left the ring")
        assert leaver.wait(timeout=PATIENCE_SECONDS) == 128 + signal.SIGTERM


def test_a_forked_child_ends_by_sigterm_and_holds_no_connection_of_its_parent() -> None:
    """The parent is killed, and the others hear of it at once, not after a time of silence."""
    others = free_peers(2)
    fork = (
        "import os, time; child = os.fork(); child or time.sleep(600); child or os._exit(0); print(child, flush=True)"
    )
    text = LEAVER.format(before="pass", first=fork, inside="await asyncio.sleep(600)", after="pass", run="uvloop.run")
    other_text = OTHER.replace("PeerLeft", "PeerLost")
    with program(other_text, *others) as other, program(text, *others) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.send_signal(signal.SIGKILL)
        try:
            heard = other.communicate(timeout=PATIENCE_SECONDS)[0]
        finally:
            os.kill(child, signal.SIGTERM)
        assert heard.splitlines()[-1].startswith("rank 1 is lost: ")
        assert "nothing was heard of it" not in heard
    assert eventually_gone(child)


def eventually_gone(process: int) -> bool:
    for _ in range(6000):
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.01)
    os.kill(process, signal.SIGKILL)
    return False


def test_ctrl_c_says_goodbye() -> None:
    code, _, complaints, heard = leave(signal.SIGINT)
    assert heard == "rank 1 left the ring: it was told to end (SIGINT)\n"
    assert code == -signal.SIGINT
    assert "KeyboardInterrupt" in complaints


def test_a_handler_of_the_program_stays_as_it_is() -> None:
    before = "stop = asyncio.Event(); asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)"
    code, said, _, heard = leave(signal.SIGTERM, before=before, inside="await stop.wait()")
    assert heard == "rank 1 left the ring: it is done\n"
    assert (code, said) == (0, "cleaned up\nwent on\n")


def test_a_handler_that_is_set_later_stays_as_well() -> None:
    first = "heard = []; signal.signal(signal.SIGTERM, lambda *_: heard.append(1))"
    inside = "[await asyncio.sleep(0.01) for _ in range(6000) if not heard]"
    after = "assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL"
    code, said, complaints, _ = leave(signal.SIGTERM, first=first, inside=inside, after=after)
    assert (code, said, complaints) == (0, "cleaned up\nwent on\n", "")
