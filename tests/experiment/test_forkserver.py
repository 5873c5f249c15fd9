import asyncio
import json
import multiprocessing
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ringwide.experiment.forkserver import SERVER_WAS_LOST, Child, Task, fork

pytestmark = pytest.mark.system

TESTS = str(Path(__file__).parents[1])
PAUSE = "import os, signal; print(os.getpid(), flush=True); signal.pause()"
# A launcher of its own, whose fork server imports next to nothing.
LAUNCHER = f"""
import asyncio, json, os, signal, sys
from multiprocessing import forkserver
from ringwide.experiment import forkserver as our_forkserver
from ringwide.experiment.forkserver import Task, fork

our_forkserver.PRELOADED = "json"
coded = lambda code: Task("experiment.coded", [code], import_from=[{TESTS!r}])

async def main():
{{}}

if __name__ == "__main__":
    asyncio.run(main())
"""
STAYS = f"""
    child = await fork(coded({PAUSE!r}))
    print((await child.output.readline()).decode(), end="", flush=True)
    await child.wait()
"""
LOSES_ITS_SERVER = f"""
    child = await fork(coded({PAUSE!r}))
    pid = int(await child.output.readline())
    os.kill(forkserver._forkserver._forkserver_pid, signal.SIGKILL)
    code = await child.wait()
    rest = await child.output.read()  # ends when the child does
    child.close()
    again = await fork(coded("print('here')"))
    said = (await again.output.read()).decode()
    print(json.dumps([pid, code, rest.decode(), said, await again.wait()]))
    again.close()
"""
SAYS_HELP = """
    child = await fork(Task("ringwide.node", ["--help"]))
    errors = await child.errors.read()
    print(await child.wait() == 0 and errors == b"" or errors)
    child.close()
"""


def runs(pid: int) -> bool:
    """Not so if it has ended, though nobody has asked how."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def heard(child: Child) -> tuple[str, str, int]:
    async with asyncio.timeout(110):
        output, errors = await asyncio.gather(child.output.read(), child.errors.read())
        code = await child.wait()
    child.close()
    return output.decode(), errors.decode(), code


async def run(code: str, *words: str, import_from: tuple[str, ...] = ()) -> tuple[str, str, int]:
    return await heard(await fork(Task("experiment.coded", [code, *words], import_from)))


async def test_what_a_child_says_and_how_it_ends() -> None:
    assert await run("import sys; print('out'); print('err', file=sys.stderr)") == ("out\n", "err\n", 0)
    assert await run("import os; os.write(1, b'raw'); raise SystemExit(3)") == ("raw", "", 3)
    assert await run("raise SystemExit('sorry')") == ("", "sorry\n", 1)


async def test_a_bug_is_told_with_its_traceback() -> None:
    output, errors, code = await run("1 / 0")
    assert (output, code) == ("", 1)
    assert errors.rstrip().endswith("ZeroDivisionError: division by zero")


async def test_it_is_a_command_of_its_own_with_words_a_session_and_nothing_to_read() -> None:
    code = "import os, sys; print(__name__, sys.argv[2:], os.getsid(0) == os.getpid(), repr(sys.stdin.read()))"
    assert await run(f"__name__ = '__main__'; {code}", "a b", "--c") == ("__main__ ['a b', '--c'] True ''\n", "", 0)


async def test_it_has_a_name_of_its_own_in_lists_of_processes() -> None:
    shows_name = "print(open('/proc/self/comm').read(), end='')"
    child = await fork(Task("experiment.coded", [shows_name], title="ringwide-3"))
    assert await heard(child) == ("ringwide-3\n", "", 0)


async def test_who_gives_up_while_a_child_starts_leaves_none() -> None:
    starting = asyncio.ensure_future(fork(Task("experiment.coded", [PAUSE])))
    await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    for child in multiprocessing.active_children():  # about to end
        child.join(60)
        assert child.exitcode == -signal.SIGKILL


async def test_modules_are_looked_for_where_it_is_told_first(tmp_path: Path) -> None:
    (tmp_path / "colorsys.py").write_text("print('mine')")
    assert await run("import colorsys", import_from=(str(tmp_path),)) == ("mine\n", "", 0)


async def test_a_signal_that_kills_is_a_negative_code_and_later_ones_go_nowhere() -> None:
    child = await fork(Task("experiment.coded", [PAUSE]))
    await child.output.readline()
    child.signal(signal.SIGTERM)
    assert await child.wait() == -signal.SIGTERM
    assert await child.wait() == -signal.SIGTERM
    child.signal(signal.SIGKILL)
    child.close()


async def test_many_wait_for_one_end_and_one_who_gives_up_disturbs_nobody() -> None:
    child = await fork(Task("experiment.coded", [PAUSE]))
    await child.output.readline()
    waiting = [asyncio.ensure_future(child.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    child.signal(signal.SIGKILL)
    assert await asyncio.gather(*waiting[1:]) == [-signal.SIGKILL] * 2
    child.close()


async def test_the_environment_of_the_launcher_is_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    output, _, _ = await run("import os; print(os.environ['OMP_NUM_THREADS'])")
    assert output == "1\n"
    assert os.environ["OMP_NUM_THREADS"] == "7"
    assert "OPENBLAS_NUM_THREADS" not in os.environ


async def test_children_begin_with_torch() -> None:
    code = (
        "import sys, gc; early = 'torch' in sys.modules and 'ringwide.training.loop' in sys.modules;"
        "print(early, gc.get_freeze_count() > 10_000)"
    )
    assert await run(code) == ("True True\n", "", 0)


def test_a_launcher_that_has_imported_the_module_is_no_news(tmp_path: Path) -> None:
    """As the script `ringwide` does, which pip installs: a child imports its launcher first."""
    script = tmp_path / "ringwide"
    script.write_text("import ringwide.__main__\n" + LAUNCHER.format(SAYS_HELP))
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=110)
    assert (ran.stdout, ran.stderr) == ("True\n", "")


def test_a_child_ends_when_its_launcher_is_killed(tmp_path: Path) -> None:
    (tmp_path / "launcher.py").write_text(LAUNCHER.format(STAYS))
    with subprocess.Popen([sys.executable, tmp_path / "launcher.py"], stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        child = int(launcher.stdout.readline())
        handle = os.pidfd_open(child)
        launcher.kill()
        try:
            ended = select.select([handle], [], [], 60)[0] == [handle]
            if not ended:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            os.close(handle)
    assert ended


def test_a_fork_server_that_is_killed_takes_its_children_along_and_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "launcher.py").write_text(LAUNCHER.format(LOSES_ITS_SERVER))
    ran = subprocess.run([sys.executable, tmp_path / "launcher.py"], capture_output=True, text=True, timeout=110)
    assert ran.returncode == 0, ran.stderr
    pid, code, rest, said, second_code = json.loads(ran.stdout)
    assert (code, rest) == (SERVER_WAS_LOST, "")
    assert not runs(pid)
    assert (said, second_code) == ("here\n", 0)
