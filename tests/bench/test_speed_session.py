"""The leader and its contestants, with made-up ones that hang, die or fail: they are skipped, with a reason."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from bench.speed import session as sessions
from bench.speed.contestants import Contestant
from bench.speed.environments import Environment, PeerUnavailable, reason_in
from bench.speed.leader import Measured, Plan, measure
from bench.speed.progress import Progress
from bench.speed.session import ContestantFailed, Session

ROOT = Path(__file__).parents[2]
SIZES = [1024, 4096]

WORKER = """
import os, subprocess, sys, time
from pathlib import Path
from bench.speed.conversation import Leader, fork_ranks, serve

def carry_out(order):
    rank = int(os.environ["RANK"])
    if order["do"] == "join":
        return {"versions": {"made up": "1"}}
    if MANNER == "hangs" and rank == 1:
        time.sleep(1000)
    if MANNER == "dies" and rank == 1 and order["bytes"] > 1024:
        sys.stderr.write("error: out of luck\\n")
        os._exit(3)
    if MANNER == "raises":
        raise ArithmeticError("a wrong sum")
    return {"seconds": [0.001 * (1 + rank)] * order["calls"]}

def run(rank):
    os.environ["RANK"] = str(rank)
    Path(PIDS, str(os.getpid())).touch()
    if MANNER == "works":
        daemon = subprocess.Popen(["sleep", "1000"])  # as some libraries have one
        Path(PIDS, str(daemon.pid)).touch()
    serve(Leader(rank), carry_out)

MANNER, PIDS, RANKS = sys.argv[1:]
if MANNER == "never comes":
    Path(PIDS, str(os.getpid())).touch()
    time.sleep(1000)
if MANNER == "ends at once":
    sys.exit("Error: no such library")
fork_ranks(int(RANKS), run)
"""


@pytest.fixture
def pids(tmp_path: Path) -> Path:
    (tmp_path / "pids").mkdir()
    return tmp_path / "pids"


def made_up(manner: str, pids: Path, *, turn_seconds: float = 60) -> Contestant:
    script = pids.parent / "worker.py"
    script.write_text(WORKER)
    command = (sys.executable, str(script), manner, str(pids), "{ranks}")
    return Contestant(manner, manner, command, "made up", turn_seconds=turn_seconds)


def alive(pids: Path) -> list[str]:
    return [path.name for path in pids.iterdir() if state_of(path.name) not in (None, "Z")]


def state_of(pid: str) -> str | None:
    """As the kernel says; none if there is no such process."""
    try:
        return Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return None


def play(*contestants: Contestant) -> Measured:
    return measure(Plan([2], SIZES, 2), contestants, Progress([2], 2))


def test_who_hangs_dies_raises_or_does_not_start_is_out_and_the_others_go_on(pids: Path) -> None:
    nowhere = Contestant("nowhere", "nowhere", ("/no/such/mpirun",), "made up")
    manners = [made_up(manner, pids) for manner in ("dies", "works", "raises", "ends at once")]
    found = play(*manners, nowhere, made_up("hangs", pids, turn_seconds=0.5))
    reasons = {one["contestant"]: one["reason"] for one in found.skipped}
    assert reasons["dies"] == "rank 1 is gone: error: out of luck"
    assert reasons["raises"].endswith("ArithmeticError: a wrong sum")
    assert reasons["ends at once"] == "it ended with 1: Error: no such library"
    assert reasons["nowhere"].startswith("it cannot be started: ")
    assert re.fullmatch(r"ranks \[(0, )?1\] did not answer within 0.5 s", reasons["hangs"])
    assert {one["ranks"] for one in found.skipped} == {2}
    for nbytes in SIZES:
        assert found.turns[2, nbytes, "works"] == {0: pytest.approx(0.002), 1: pytest.approx(0.002)}
    assert found.turns[2, 1024, "dies"] == {0: pytest.approx(0.002)}
    assert found.versions == {"made up": "1"}
    assert alive(pids) == []


def test_who_never_comes_is_waited_for_only_so_long(pids: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MEET_SECONDS", 2)
    found = play(made_up("never comes", pids))
    assert found.skipped[0]["reason"].startswith("only 0 of 2 ranks came within 2 s")
    assert alive(pids) == []


def test_a_stranger_at_the_port_is_not_a_rank(pids: Path) -> None:
    stranger = made_up("works", pids)
    script = Path(stranger.command[1])
    script.write_text(
        "import os, socket\n"
        "host, port, token = os.environ['BENCH_SPEED_LEADER'].split(':')\n"
        'socket.create_connection((host, int(port))).sendall(b\'{"token": "guessed", "rank": 0}\\n\')\n' + WORKER
    )
    assert play(stranger).turns[2, 1024, "works"].keys() == {0, 1}


def test_an_end_without_a_beginning(pids: Path) -> None:
    Session(made_up("works", pids), 2).end()


def test_orders_to_who_has_ended_fail_with_a_reason(pids: Path) -> None:
    session = Session(made_up("works", pids), 2)
    try:
        session.start()
        session.join(SIZES)
        os.kill(min(int(path.name) for path in pids.iterdir()), signal.SIGKILL)  # a rank was there before its daemon
        with pytest.raises(ContestantFailed, match="is gone"):
            session.turn(1024, 2)
    finally:
        session.end()
    assert alive(pids) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.system
def test_nobody_is_left_when_the_leader_is_stopped(pids: Path, number: signal.Signals) -> None:
    leader = (
        "import signal, sys\n"
        "from bench.speed.contestants import Contestant\n"
        "from bench.speed.leader import Plan, measure\n"
        "from bench.speed.progress import Progress\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))\n"
        f"contestant = Contestant('hangs', 'hangs', {made_up('hangs', pids).command!r}, 'made up', turn_seconds=600)\n"
        "measure(Plan([2], [1024], 1), [contestant], Progress([2], 1))\n"
    )
    environment = {**os.environ, "TMPDIR": str(pids.parent)}  # where one that is killed leaves a directory
    with subprocess.Popen(
        [sys.executable, "-c", leader], cwd=ROOT, env=environment, stderr=subprocess.DEVNULL
    ) as process:
        while len(list(pids.iterdir())) < 2:
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(number)
        process.wait(60)
    while alive(pids):  # the test's own deadline ends this
        time.sleep(0.05)


def test_an_environment_that_cannot_be_made_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.speed.environments.PLACE", tmp_path)
    monkeypatch.setattr("bench.speed.environments.sys.executable", "/no/such/python")
    with pytest.raises(PeerUnavailable, match=r"making its environment failed: .*No such file"):
        Environment("peer", ("peer==1",)).make(print)
    found = play(Contestant("peer", "peer", ("peer",), "made up", environment=Environment("peer", ("peer==1",))))
    assert found.skipped[0]["ranks"] is None
    assert found.skipped[0]["reason"].startswith("making its environment failed")


def test_the_line_that_says_most_is_the_reason() -> None:
    assert reason_in("Looking\nERROR: no such version\n[notice] a new pip\n") == "ERROR: no such version"
    assert reason_in("one\n----\n") == "one"
    assert reason_in("") == "it said nothing"
