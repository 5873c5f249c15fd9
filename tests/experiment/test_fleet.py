import asyncio
import os
import sys

import pytest

from ringwide.experiment.fleet import NodeFailed, culprit, run_fleet
from ringwide.experiment.process import LAST_WORDS, LONGEST_LINE, Exit

PAUSE = "import os, signal; print(os.getpid(), flush=True); signal.pause()"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + PAUSE


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


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
    exits = await run_fleet([python(code) for code in codes], lambda rank, line: heard.append((rank, line)))
    assert sorted(heard) == [(0, "line 0"), (1, "line 1"), (2, "line 2")]
    assert exits == [Exit(rank, 0, ("word",)) for rank in range(3)]


@pytest.mark.system
async def test_a_crash_ends_the_others_and_shows_the_last_words() -> None:
    pids: list[int] = []
    crash = f"import sys; [print('word', n, file=sys.stderr) for n in range({LAST_WORDS + 5})]; sys.exit(3)"
    with pytest.raises(NodeFailed) as caught:
        await run_fleet([python(PAUSE), python(crash), python(PAUSE)], lambda rank, line: pids.append(int(line)))
    assert (caught.value.rank, caught.value.exit_code) == (1, 3)
    assert caught.value.last_words == tuple(f"word {n}" for n in range(5, LAST_WORDS + 5))
    assert str(caught.value).startswith(
        "node 1 ended with exit code 3; the others were ended. Its last words:\n    word 5"
    )
    assert not any(alive(pid) for pid in pids)


@pytest.mark.system
async def test_of_two_failures_the_cause_is_named() -> None:
    with pytest.raises(NodeFailed) as caught:
        await run_fleet([python("raise SystemExit(5)"), python("raise SystemExit(9)")], lambda rank, line: None)
    assert caught.value.rank == 1


@pytest.mark.system
@pytest.mark.parametrize("code", [PAUSE, STUBBORN], ids=["willing", "ignores SIGTERM"])
async def test_cancelling_ends_every_node(code: str) -> None:
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
    exits = await run_fleet([python(endless)], lambda rank, line: heard.append(line))
    assert [len(words) for words in exits[0].last_words] == [LONGEST_LINE]
    assert "".join(heard).strip("y") == ""
