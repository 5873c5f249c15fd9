"""A signal to all processes of a terminal's foreground group, as Ctrl-C is, or of a job, as a scheduler sends it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from experiment.heeding import heeding  # noqa: F401
from experiment.told import plan, progress, result, step
from ringwide.experiment.node_messages import encode
from ringwide.experiment.stop_signals import SIGNALS

pytestmark = pytest.mark.system

TESTS = Path(__file__).parents[1]
TOLD = [encode(message) for message in (plan(), progress(step(1), step(2)))]
NODE = f"""
import signal, sys
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    print("ignores SIGHUP", file=sys.stderr)
signal.pthread_sigmask(signal.SIG_BLOCK, {{1, 2, 15}})
for line in {TOLD!r}:
    print(line, flush=True)
number = signal.sigwait({{1, 2, 15}})
print({encode(result(stopped_by=2))!r}, flush=True)
raise SystemExit(128 + number)
"""
# Says when it is being imported, and goes on when the test lets it.
SLOW = "import os; print('importing', os.getpid(), flush=True); open(os.environ['LET_GO']).read()"
LAUNCHER = f"""
import sys
from ringwide.__main__ import main
from ringwide.experiment import forkserver, launch
from ringwide.experiment.fleet import Command

forkserver.PRELOADED = sys.argv[1]
launch.node_command = lambda *_: Command(forkserver.Task("experiment.coded", [{NODE!r}], [{str(TESTS)!r}]))
if __name__ == "__main__":
    sys.exit(main(["run", "experiment.yaml"]))
"""


class Job:
    """A launcher that leads a process group of its own."""

    def __init__(self, directory: Path, preloaded: str, *before: str) -> None:
        self._directory = directory
        (directory / "launcher.py").write_text(LAUNCHER)
        (directory / "slow.py").write_text(SLOW)
        (directory / "experiment.yaml").write_text("name: t\nnodes: 2\nreport: {html: false}\n")
        os.mkfifo(directory / "let_go")
        paths = os.pathsep.join([str(directory), os.environ.get("PYTHONPATH", "")])
        self._process = subprocess.Popen(
            [*before, sys.executable, "launcher.py", preloaded],
            cwd=directory,
            env={**os.environ, "PYTHONPATH": paths, "LET_GO": str(directory / "let_go")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def until(self, start: str) -> str:
        assert self._process.stdout is not None
        return next((line for line in self._process.stdout if line.startswith(start)), "")

    def signal_all(self, number: int) -> None:
        os.killpg(self._process.pid, number)

    def let_go(self) -> None:
        (self._directory / "let_go").write_text("")

    def end(self) -> tuple[int, str, str]:
        """Its fork server and resource tracker have our pipes too: these end only when all have."""
        try:
            output, errors = self._process.communicate(timeout=110)
        finally:
            self._process.kill()
        return self._process.returncode, output, errors

    def results(self) -> dict[str, Any]:
        (directory,) = (self._directory / "runs").iterdir()
        assert (directory / "report.md").exists()
        document: dict[str, Any] = json.loads((directory / "results.json").read_text())
        return document


@pytest.mark.parametrize("number", SIGNALS)
def test_while_nodes_start(tmp_path: Path, number: signal.Signals) -> None:
    job = Job(tmp_path, "slow")
    assert job.until("importing ")
    job.signal_all(number)
    assert job.until("ending the nodes")
    job.let_go()
    code, output, errors = job.end()
    assert (code, errors) == (128 + number, "")
    assert output.splitlines()[0] == f"stopped by {number.name} after step 0"
    assert (job.results()["status"], job.results()["reason"]) == ("stopped", number.name)


@pytest.mark.parametrize("number", SIGNALS)
def test_while_nodes_train(tmp_path: Path, number: signal.Signals) -> None:
    job = Job(tmp_path, "json")
    assert job.until("step 2")
    job.signal_all(number)
    code, output, errors = job.end()
    assert (code, errors) == (128 + number, "")
    assert f"stopped by {number.name} after step 2\n" in output
    assert [node["rank"] for node in job.results()["nodes"]] == [0, 1]


def test_who_was_started_to_outlive_its_terminal_does_so_and_its_nodes_too(tmp_path: Path) -> None:
    job = Job(tmp_path, "json", "nohup")
    assert job.until("step 2")
    job.signal_all(signal.SIGHUP)
    job.signal_all(signal.SIGTERM)
    code, _, errors = job.end()
    assert (code, job.results()["reason"]) == (128 + signal.SIGTERM, "SIGTERM")
    assert "nodes 0, 1: ignores SIGHUP\n" in errors


def test_a_server_that_is_lost_while_nodes_start_is_told_in_one_line(tmp_path: Path) -> None:
    job = Job(tmp_path, "slow")
    os.kill(int(job.until("importing ").split()[1]), signal.SIGKILL)
    code, _, errors = job.end()
    reason = "a node cannot be started: the process that nodes are forked from has ended"
    assert (code, errors) == (1, f"ringwide: error: {reason}\n")
    assert (job.results()["status"], job.results()["reason"]) == ("failed", reason)
