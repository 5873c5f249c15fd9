import asyncio
import os
import signal
from pathlib import Path

import pytest

from experiment.heeding import heeding  # noqa: F401
from ringwide.experiment import fleet
from ringwide.experiment.fleet import LAST_LINES, LONGEST_LINE, Command, Exit, NodeFailed, culprit, run_fleet
from ringwide.experiment.forkserver import Task
from ringwide.experiment.stop_signals import StopSignals

PAUSE = "import os, signal; print(os.getpid(), flush=True); signal.pause()"
OBEDIENT = """
import os, signal, sys
numbers = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
print(os.getpid(), flush=True)
number = signal.sigwait(numbers)
print("asked by", number, flush=True)
sys.exit(128 + number)
"""
DEAF = """
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
print(os.getpid(), flush=True)
signal.sigwait({signal.SIGUSR1})
"""
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + PAUSE


def python(code: str, error_log: Path | None = None) -> Command:
    return Command(Task("experiment.coded", [code]), error_log)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def ended(rank: int, code: int) -> Exit:
    return Exit(rank, code, ())


def test_who_lost_a_peer_is_named_after_who_failed() -> None:
    assert culprit([ended(0, 5), ended(1, -9), ended(2, 5)]).rank == 1
    assert culprit([ended(3, 4), ended(0, 2)]).rank == 0
    assert culprit([ended(2, 5), ended(0, 5)]).rank == 2


def test_a_failure_passes_on_the_code_but_never_success() -> None:
    assert NodeFailed(ended(1, 2)).exit_code == 2
    assert NodeFailed(ended(1, -9)).exit_code == 1
    assert str(NodeFailed(ended(1, -9))).startswith("node 1 was killed by SIGKILL; the others were ended.")


@pytest.mark.system
async def test_a_fleet_that_ends_well_gives_its_lines_and_exits_by_rank() -> None:
    heard: list[tuple[int, str]] = []
    codes = [f"import sys; print('line', {rank}); print('word', file=sys.stderr)" for rank in range(3)]
    ending = await run_fleet([python(code) for code in codes], lambda rank, line: heard.append((rank, line)))
    assert sorted(heard) == [(0, "line 0"), (1, "line 1"), (2, "line 2")]
    assert ending.exits == tuple(Exit(rank, 0, ("word",)) for rank in range(3))
    assert (ending.signal, ending.trouble) == (0, "")


@pytest.mark.system
async def test_a_crash_ends_the_others_and_shows_the_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "GRACE_SECONDS", 0.1)
    pids: list[int] = []
    crash = f"import sys; [print('word', n, file=sys.stderr) for n in range({LAST_LINES + 5})]; sys.exit(3)"
    with pytest.raises(NodeFailed) as caught:
        await run_fleet([python(PAUSE), python(crash), python(PAUSE)], lambda rank, line: pids.append(int(line)))
    assert (caught.value.rank, caught.value.exit_code) == (1, 3)
    assert caught.value.last_lines == tuple(f"word {n}" for n in range(5, LAST_LINES + 5))
    assert str(caught.value).startswith(
        "node 1 ended with exit code 3; the others were ended. Its last lines:\n    word 5"
    )
    assert not any(alive(pid) for pid in pids)


@pytest.mark.system
async def test_of_two_failures_the_cause_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "GRACE_SECONDS", 60)
    with pytest.raises(NodeFailed) as caught:
        await run_fleet([python("raise SystemExit(5)"), python("raise SystemExit(9)")], lambda rank, line: None)
    assert caught.value.rank == 1


@pytest.mark.system
@pytest.mark.parametrize("code", [PAUSE, STUBBORN], ids=["willing", "ignores SIGTERM"])
async def test_cancelling_ends_every_node(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wait, patience = fleet._wait, iter([0.5, 60])  # with those who are asked, and with those who are killed
    monkeypatch.setattr(fleet, "_wait", lambda endings, _: wait(endings, next(patience)))
    pids: list[int] = []

    def hear(rank: int, line: str) -> None:
        pids.append(int(line))
        if len(pids) == 2:
            running.cancel()

    running = asyncio.ensure_future(run_fleet([python(code)] * 2, hear))
    with pytest.raises(asyncio.CancelledError):
        await running
    assert len(pids) == 2
    assert not any(alive(pid) for pid in pids)


@pytest.mark.system
async def test_a_line_without_end_is_cut() -> None:
    endless = f"import sys; sys.stderr.write('x' * {5 * LONGEST_LINE}); print('y' * {2 * LONGEST_LINE}, flush=True)"
    heard: list[str] = []
    ending = await run_fleet([python(endless)], lambda rank, line: heard.append(line))
    assert [len(words) for words in ending.exits[0].last_lines] == [LONGEST_LINE]
    assert "".join(heard).strip("y") == ""


class Asker:
    """Asks the fleet to stop once `count` nodes have said who they are."""

    def __init__(self, count: int, *numbers: int) -> None:
        self.stop, self.pids, self.answers = StopSignals(), [], []
        self._count, self._numbers = count, numbers

    def __call__(self, rank: int, line: str) -> None:
        if not line.isdigit():
            self.answers.append((rank, line))
            return
        self.pids.append(int(line))
        if len(self.pids) == self._count:
            for number in self._numbers:
                self.stop.ask(number)


@pytest.mark.system
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_is_passed_on_to_every_node(number: signal.Signals) -> None:
    asker = Asker(2, number)
    ending = await run_fleet([python(OBEDIENT)] * 2, asker, stop=asker.stop)
    assert (ending.signal, ending.trouble) == (number, "")
    assert sorted(asker.answers) == [(0, f"asked by {number}"), (1, f"asked by {number}")]
    assert [exit.code for exit in ending.exits] == [128 + number] * 2


@pytest.mark.system
async def test_a_second_signal_kills() -> None:
    asker = Asker(2, signal.SIGINT, signal.SIGINT)
    ending = await run_fleet([python(DEAF)] * 2, asker, stop=asker.stop)
    assert ending.trouble == "node 0 did not stop and was killed; node 1 did not stop and was killed"
    assert not any(alive(pid) for pid in asker.pids)


@pytest.mark.system
async def test_who_does_not_stop_in_time_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "STOP_SECONDS", 0.1)
    asker = Asker(2, signal.SIGTERM)
    ending = await run_fleet([python(DEAF)] * 2, asker, stop=asker.stop)
    assert ending.signal == signal.SIGTERM
    assert ending.trouble == "node 0 did not stop and was killed; node 1 did not stop and was killed"
    assert not any(alive(pid) for pid in asker.pids)


@pytest.mark.system
async def test_nodes_that_are_still_starting_are_just_ended() -> None:
    asker = Asker(2, signal.SIGINT)
    ending = await run_fleet([python(PAUSE)] * 2, asker, stop=asker.stop, can_stop=lambda: False)
    assert (ending.signal, ending.trouble) == (signal.SIGINT, "")
    assert not any(alive(pid) for pid in asker.pids)


@pytest.mark.system
async def test_a_node_that_fails_while_stopping_is_told() -> None:
    asker = Asker(2, signal.SIGINT)
    clumsy = OBEDIENT.replace("128 + number", "9")
    ending = await run_fleet([python(OBEDIENT), python(clumsy)], asker, stop=asker.stop)
    assert (ending.signal, ending.trouble) == (signal.SIGINT, "node 1 ended with exit code 9")


@pytest.mark.system
async def test_a_stop_that_the_nodes_agreed_on_is_not_asked_for_again() -> None:
    waits = "import signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, {2})\n"
    waits += "sys.exit(9 if signal.sigtimedwait({2}, 0.3) else 130)"
    ending = await run_fleet([python(waits), python("raise SystemExit(130)")], lambda rank, line: None)
    assert (ending.signal, ending.trouble) == (signal.SIGINT, "")
    assert [exit.code for exit in ending.exits] == [130, 130]


@pytest.mark.system
async def test_what_a_listener_raises_arrives_as_it_is_and_no_node_is_left() -> None:
    pids: list[int] = []

    def hear(rank: int, line: str) -> None:
        pids.append(int(line))
        if len(pids) == 2:
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        await run_fleet([python(PAUSE)] * 2, hear)
    assert not any(alive(pid) for pid in pids)


@pytest.mark.system
async def test_standard_error_is_kept_whole_if_there_is_any(tmp_path: Path) -> None:
    talk = f"import sys; [print('word', n, file=sys.stderr) for n in range({LAST_LINES + 5})]"
    await run_fleet([python(talk, tmp_path / "0.log"), python("", tmp_path / "1.log")], lambda rank, line: None)
    assert os.listdir(tmp_path) == ["0.log"]
    assert (tmp_path / "0.log").read_text().splitlines() == [f"word {n}" for n in range(LAST_LINES + 5)]


@pytest.mark.system
async def test_a_node_begins_with_what_all_need_on_one_thread_and_finds_what_is_the_users(tmp_path: Path) -> None:
    (tmp_path / "mine_alone.py").write_text("print('found')")
    code = (
        "import sys, os, mine_alone; print('torch' in sys.modules, os.environ['OMP_NUM_THREADS'], 'PATH' in os.environ)"
    )
    heard: list[str] = []
    task = Task("experiment.coded", [code], import_from=[str(tmp_path)])
    await run_fleet([Command(task)], lambda rank, line: heard.append(line))
    assert heard == ["found", "True 1 True"]


def test_a_signal_without_a_name_is_told_by_number() -> None:
    assert str(ended(1, -40)) == "node 1 was killed by signal 40"


class Foretold:
    """A node, and what starts it, whose end is that of a future."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.ended: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()

    async def start(self, rank: int, on_line: object) -> "Foretold":
        return self

    def signal(self, number: int) -> None:
        if not self.ended.done():
            self.ended.set_result(ended(self.rank, -number))


async def test_who_is_known_late_to_be_gone_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "GRACE_SECONDS", 0.01)
    nodes = [Foretold(rank) for rank in range(3)]
    running = asyncio.ensure_future(run_fleet(nodes, lambda rank, line: None, patience_seconds=60))
    nodes[0].ended.set_result(ended(0, 5))
    await asyncio.sleep(0.1)  # longer than its grace: without patience it would be over
    assert not running.done()
    nodes[2].ended.set_result(ended(2, 5))
    nodes[1].ended.set_result(Exit(1, -9, (), "10.0.0.2", "was lost"))
    with pytest.raises(NodeFailed, match=r"^node 1 on 10\.0\.0\.2 was lost; the others were ended"):
        await running


async def test_patience_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "GRACE_SECONDS", 0.01)
    nodes = [Foretold(rank) for rank in range(2)]
    nodes[0].ended.set_result(ended(0, 5))
    with pytest.raises(NodeFailed, match=r"^node 0 ended with exit code 5"):
        await run_fleet(nodes, lambda rank, line: None, patience_seconds=0.01)
