"""Launcher, with nodes that only print prepared lines."""

import errno
import gc
import io
import json
import math
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from experiment.heeding import heeding  # noqa: F401
from experiment.told import plan, progress, result, step
from ringwide.errors import ConfigError, RingwideError
from ringwide.experiment import fleet, launch
from ringwide.experiment.fleet import Command, NodeFailed
from ringwide.experiment.forkserver import Task
from ringwide.experiment.launch import run_experiment
from ringwide.experiment.node_messages import Message, encode

pytestmark = pytest.mark.system

BEGUN = (plan(), progress(step(1), step(2)))
SWEEP = "sweep: {ring.lanes: [1, 2]}\n"
Node = Callable[[int, Path], str]


def says(*messages: Message) -> str:
    return "".join(f"print({encode(message)!r}, flush=True)\n" for message in messages)


def well(rank: int, directory: Path) -> str:
    return says(*BEGUN, result())


def stoppable(rank: int, directory: Path) -> str:
    return (
        "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, {2, 15})\n"
        f"{says(*BEGUN)}number = signal.sigwait({{2, 15}})\n{says(result(stopped_by=2))}raise SystemExit(128 + number)"
    )


def crashing(rank: int, directory: Path) -> str:
    return says(*BEGUN) + ("import sys; sys.exit('out of luck')" if rank == 1 else "import signal; signal.pause()")


class Run:
    """One call of the launcher in a directory of its own."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory, self.out, self._monkeypatch = directory, io.StringIO(), monkeypatch
        self.variants: list[str] = []
        self.resumed: list[Path | None] = []

    def __call__(self, node: Node, text: str = "", out: io.StringIO | None = None, **options: Any) -> int:
        def command(launching: launch.Launch, directory: Path, peers: Path, rank: int) -> Command:
            self.variants.append(directory.name)
            self.resumed.append(launching.resume)
            return Command(Task("experiment.coded", [node(rank, directory)]), directory / f"node-{rank}.stderr.log")

        self._monkeypatch.setattr(launch, "node_command", command)
        experiment = self.directory / "experiment.yaml"
        report = f"report: {{directory: {self.directory / 'runs'}, html: false}}\n"
        experiment.write_text(f"name: t\nnodes: 2\n{report}{text}")
        return uvloop.run(run_experiment(experiment, out or self.out, **options))

    @property
    def made(self) -> Path:
        (directory,) = (self.directory / "runs").iterdir()
        return directory

    def results(self, below: str = "") -> dict[str, Any]:
        document: dict[str, Any] = json.loads((self.made / below / "results.json").read_text())
        return document


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(fleet, "GRACE_SECONDS", 0.1)
    return Run(tmp_path, monkeypatch)


class SignalsAt(io.StringIO):
    """Signals this process when a line that starts so is written: as a person does who has seen it."""

    def __init__(self, start: str, number: int) -> None:
        super().__init__()
        self._start, self._number = start, number

    def write(self, text: str) -> int:
        if text.startswith(self._start):
            os.kill(os.getpid(), self._number)
        return super().write(text)


class Closed(io.StringIO):
    def write(self, text: str) -> int:
        if text.startswith("step "):
            raise BrokenPipeError
        return super().write(text)


def test_a_run_is_summed_up_and_leaves_everything_in_its_directory(run: Run) -> None:
    assert run(well, "training: {steps: 3}\n", overrides=["ring.lanes=3"]) == 0
    lines = run.out.getvalue().splitlines()
    assert lines[0] == "waiting for 2 nodes to start"
    assert lines[2].startswith("step 2/10 ")
    assert lines[-2:] == ["all nodes hold the same parameters, to the bit (aa)", f"report: {run.made / 'report.md'}"]
    names = ["experiment.yaml", "metrics.jsonl", "report.md", "results.json"]
    assert sorted(path.name for path in run.made.iterdir()) == names
    found = run.results()
    assert (found["status"], found["reason"], found["label"]) == ("complete", "", "")
    assert [node["rank"] for node in found["nodes"]] == [0, 1]
    assert found["config"]["ring"]["lanes"] == 3
    assert "lanes: 3" in (run.made / "experiment.yaml").read_text()
    assert len((run.made / "metrics.jsonl").read_text().splitlines()) == 4


def test_silence_prints_nothing(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    def chatty(rank: int, directory: Path) -> str:
        return "import sys; print('warning', file=sys.stderr)\n" + well(rank, directory)

    assert run(chatty, "logging: silent\n") == 0
    assert run.out.getvalue() == ""
    assert capsys.readouterr() == ("", "")
    assert (run.made / "node-0.stderr.log").read_text() == "warning\n"


def test_a_sweep_in_silence_prints_nothing_either(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(well, f"logging: silent\n{SWEEP}") == 0
    assert (run.out.getvalue(), capsys.readouterr()) == ("", ("", ""))


def test_a_signal_after_all_is_done_stopped_nothing(run: Run) -> None:
    def ending(rank: int, directory: Path) -> str:
        """Has its result, and is asked before it is gone."""
        return (
            "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, {2})\n"
            f"{says(*BEGUN, result())}signal.sigwait({{2}})"
        )

    out = SignalsAt("step ", signal.SIGINT)
    assert run(ending, out=out) == 130
    assert run.results()["status"] == "complete"
    assert "stopped by" not in out.getvalue()


@pytest.mark.parametrize("dry_run", [False, True])
def test_all_nodes_cannot_listen_in_one_place(run: Run, dry_run: bool) -> None:
    with pytest.raises(ConfigError, match=r"experiment\.yaml: ring\.listen: '127\.0\.0\.1:7000': all nodes would"):
        run(well, 'ring: {listen: "127.0.0.1:7000"}\n', dry_run=dry_run)
    assert run.variants == []


@pytest.mark.parametrize("logging", ["silent", "normal"])
def test_a_loss_that_is_not_finite_is_a_warning(run: Run, logging: str, capsys: pytest.CaptureFixture[str]) -> None:
    def diverging(rank: int, directory: Path) -> str:
        empty = step(1, loss=math.nan, samples=0)
        return says(plan(), progress(empty, step(3 - rank, loss=math.inf), step(4, loss=math.nan)), result())

    assert run(diverging, f"logging: {logging}\n") == 0
    assert capsys.readouterr().err == "ringwide: warning: the loss is not finite, first in step 2\n"


def test_what_nodes_remark_is_passed_on(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    def chatty(rank: int, directory: Path) -> str:
        return "import sys; print('warning', file=sys.stderr)\n" + well(rank, directory)

    assert run(chatty) == 0
    assert capsys.readouterr().err == "nodes 0, 1: warning\n"


def test_a_node_that_fails_is_named_and_what_was_done_is_kept(run: Run) -> None:
    with pytest.raises(NodeFailed, match=r"node 1 ended with exit code 1; the others were ended.*\n    out of luck"):
        run(crashing)
    found = run.results()
    assert (found["status"], found["reason"]) == ("failed", "node 1 ended with exit code 1")
    assert len((run.made / "metrics.jsonl").read_text().splitlines()) == 4
    assert (run.made / "report.md").exists()


def test_nodes_that_differ_are_a_failure(run: Run) -> None:
    def differing(rank: int, directory: Path) -> str:
        return says(*BEGUN, result(fingerprint=str(rank)))

    with pytest.raises(RingwideError, match="the nodes hold different parameters: 0 on node 0; 1 on node 1"):
        run(differing)
    assert run.results()["status"] == "failed"


def test_a_node_without_a_result_is_a_failure(run: Run) -> None:
    with pytest.raises(RingwideError, match="node 0 ended well, but without a result"):
        run(lambda rank, directory: says(*BEGUN))
    assert run.results()["reason"] == "node 0 ended well, but without a result"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_the_nodes_and_the_report_says_so(run: Run, number: signal.Signals, code: int) -> None:
    out = SignalsAt("step ", number)
    assert run(stoppable, out=out) == code
    assert f"stopped by {number.name} after step 2\n" in out.getvalue()
    assert "all nodes hold the same parameters" in out.getvalue()
    found = run.results()
    assert (found["status"], found["reason"], len(found["nodes"])) == ("stopped", number.name, 2)
    assert (run.made / "report.md").exists()


def test_a_signal_while_nodes_start_just_ends_them(run: Run) -> None:
    out = SignalsAt("waiting", signal.SIGINT)
    assert run(lambda rank, directory: "import signal; signal.pause()", out=out) == 130
    assert (run.results()["status"], run.results()["nodes"]) == ("stopped", [])


def test_a_second_signal_kills_and_still_leaves_a_report(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    class Twice(SignalsAt):
        def write(self, text: str) -> int:
            if text.startswith("stopping "):
                os.kill(os.getpid(), signal.SIGTERM)
            return super().write(text)

    def deaf(rank: int, directory: Path) -> str:
        return "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, {2, 15})\n" + says(*BEGUN) + "signal.pause()"

    assert run(deaf, out=Twice("step ", signal.SIGINT)) == 130
    trouble = "node 0 did not stop and was killed; node 1 did not stop and was killed"
    assert run.results()["reason"] == f"SIGINT; {trouble}"
    assert capsys.readouterr().err == f"ringwide: warning: {trouble}\n"


def test_when_nobody_reads_the_nodes_are_ended_and_the_report_is_written(run: Run) -> None:
    with pytest.raises(BrokenPipeError):
        run(stoppable, out=Closed())
    assert (run.results()["status"], run.results()["reason"]) == ("stopped", launch.UNREAD)


class Full(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_output_that_cannot_be_written_ends_the_run_with_a_report(run: Run) -> None:
    with pytest.raises(OSError, match="No space left"):
        run(stoppable, out=Full())
    reason = "its output cannot be written: No space left on device"
    assert (run.results()["status"], run.results()["reason"]) == ("failed", reason)
    assert (run.made / "report.md").exists()


@pytest.mark.parametrize("text", ["", "sweep: {ring.lanes: [1]}\n"])
def test_a_full_disk_is_one_error_and_leaves_a_report(
    run: Run, text: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    opened = launch.Recorder.__init__

    def on_a_full_disk(recorder: launch.Recorder, directory: Path, *given: Any, **named: Any) -> None:
        opened(recorder, directory, *given, **named)
        recorder._metrics.close()
        recorder._metrics = Path("/dev/full").open("w")  # noqa: SIM115

    def talkative(rank: int, directory: Path) -> str:
        """More than is kept in memory, from both."""
        return says(BEGUN[0], *[progress(*map(step, range(1, 500)))] * 4) + "import signal; signal.pause()"

    monkeypatch.setattr(launch.Recorder, "__init__", on_a_full_disk)
    with pytest.raises(RingwideError, match=r"metrics\.jsonl: cannot be written: No space left on device"):
        run(talkative, text)
    gc.collect()
    assert "never retrieved" not in caplog.text
    assert run.results()["status"] == "failed"
    assert "No space left on device" in run.results()["reason"]
    assert (run.made / "report.md").exists()


def test_a_sweep_runs_its_variants_one_after_the_other(run: Run) -> None:
    assert run(well, SWEEP) == 0
    assert run.variants == ["01-lanes=1", "01-lanes=1", "02-lanes=2", "02-lanes=2"]
    assert [line for line in run.out.getvalue().splitlines() if line.startswith("variant")] == [
        "variant 1 of 2: lanes=1",
        "variant 2 of 2: lanes=2",
    ]
    found = run.results()
    assert (found["format"], found["name"], found["status"], found["reason"]) == (1, "t", "complete", "")
    assert (found["sweep"], found["runs"]) == ({"ring.lanes": [1, 2]}, ["01-lanes=1", "02-lanes=2"])
    assert run.results("02-lanes=2")["label"] == "lanes=2"
    assert run.results("02-lanes=2")["config"]["ring"]["lanes"] == 2
    comparison = run.out.getvalue().splitlines()[-6:-1]
    assert any("ring.lanes" in line and "batches" in line for line in comparison)
    assert run.out.getvalue().splitlines()[-1] == f"report of all variants: {run.made / 'report.md'}"
    assert (run.made / "report.md").exists()


def test_a_variant_that_fails_ends_the_sweep(run: Run) -> None:
    def second_fails(rank: int, directory: Path) -> str:
        return (crashing if directory.name == "02-lanes=2" else well)(rank, directory)

    with pytest.raises(NodeFailed):
        run(second_fails, "sweep: {ring.lanes: [1, 2, 3]}\n")
    found = run.results()
    assert (found["status"], found["reason"]) == ("failed", "lanes=2: node 1 ended with exit code 1")
    assert found["runs"] == ["01-lanes=1", "02-lanes=2"]
    assert (run.made / "report.md").exists()


def test_a_signal_ends_the_sweep(run: Run) -> None:
    assert run(stoppable, SWEEP, out=SignalsAt("step ", signal.SIGINT)) == 130
    found = run.results()
    assert (found["status"], found["reason"], found["runs"]) == ("stopped", "lanes=1: SIGINT", ["01-lanes=1"])


def test_a_signal_between_two_variants_ends_the_sweep(run: Run) -> None:
    assert run(well, SWEEP, out=SignalsAt("report: ", signal.SIGTERM)) == 143
    found = run.results()
    assert (found["status"], found["reason"]) == ("stopped", "SIGTERM after lanes=1")
    assert found["runs"] == ["01-lanes=1"]


def test_a_dry_run_starts_and_writes_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ringwide.experiment.outline.outline", lambda variants: f"{len(variants)} variants")
    assert run(well, SWEEP, dry_run=True) == 0
    assert run.out.getvalue() == "2 variants\n"
    assert run.variants == []
    assert os.listdir(run.directory) == ["experiment.yaml"]


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "there is no such directory; name that of a run"), (SWEEP, "not for a sweep; name one of its runs")],
)
def test_what_cannot_be_resumed_is_said_before_anything_starts(run: Run, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"--resume runs/gone: {message}"):
        run(well, text, resume=Path("runs/gone"))
    assert run.variants == []


def crashing_twice(rank: int, directory: Path) -> str:
    """A run whose first two attempts crash: the first before any checkpoint, the second after one."""
    attempt = len(list(directory.parent.iterdir()))
    if attempt > 2:
        return well(rank, directory)
    if attempt == 2:
        (directory / "checkpoints").mkdir(exist_ok=True)
        (directory / "checkpoints" / "step-000000002.pt").touch()
    return crashing(rank, directory)


def test_a_run_that_crashes_goes_on_from_its_last_checkpoint(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(crashing_twice, restarts=3) == 0
    second = sorted((run.directory / "runs").iterdir())[1]
    assert run.resumed == [None] * 4 + [second] * 2
    errors = capfd.readouterr().err
    assert "restart, 3 left: begins again: there is no checkpoint yet" in errors
    assert f"restart, 2 left: resumes from {second}" in errors


def test_a_run_that_crashes_too_often_says_how_to_go_on(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(NodeFailed):
        run(crashing_twice, restarts=1)
    second = sorted((run.directory / "runs").iterdir())[1]
    assert (
        f"to go on: python -m ringwide run {run.directory}/experiment.yaml --resume {second}\n"
        in capfd.readouterr().err
    )


def refusing(rank: int, directory: Path) -> str:
    return says(*BEGUN) + f"import sys; sys.exit({ConfigError.exit_code})"


def refusing_at_once(rank: int, directory: Path) -> str:
    return f"import sys; print('no such model', file=sys.stderr); sys.exit({ConfigError.exit_code})"


def test_nothing_is_left_of_a_start_that_was_refused(run: Run) -> None:
    with pytest.raises(NodeFailed, match="no such model"):
        run(refusing_at_once)
    assert list((run.directory / "runs").iterdir()) == []
    assert "report" not in run.out.getvalue()


def test_a_mistake_of_the_user_is_not_made_again(run: Run) -> None:
    with pytest.raises(NodeFailed):
        run(refusing, restarts=5)
    assert len(list((run.directory / "runs").iterdir())) == 1


@pytest.mark.parametrize("option", [{"restarts": 2}, {"resume": Path("latest")}], ids=str)
def test_a_sweep_is_neither_restarted_nor_resumed(run: Run, option: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="not for a sweep"):
        run(well, SWEEP, **option)


def test_the_latest_run_is_found_or_there_is_a_sentence(run: Run) -> None:
    with pytest.raises(ConfigError, match="--resume latest: no run of 't' has a complete checkpoint"):
        run(well, resume=Path("latest"))
    assert not (run.directory / "runs").exists(), "nothing is left of a start that was refused"
    checkpoints = run.directory / "runs" / "t-20200101-000000" / "checkpoints"
    checkpoints.mkdir(parents=True)
    (checkpoints / "step-000000002.pt").touch()
    assert run(well, resume=Path("latest")) == 0
    assert run.resumed == [checkpoints.parent] * 2


@pytest.mark.parametrize(("name", "is_one"), [("step-000000002.pt", True), ("step-000000002.rank-0.pt", False)])
def test_one_checkpoint_of_a_run_can_be_named(run: Run, tmp_path: Path, name: str, is_one: bool) -> None:
    (tmp_path / name).touch()
    if is_one:
        run(well, resume=tmp_path / name)
        return
    with pytest.raises(
        ConfigError, match=r"there is no such checkpoint; .* or a whole checkpoint in it, as in .*/step-"
    ):
        run(well, resume=tmp_path / name)


async def test_a_node_is_told_everything_it_needs(tmp_path: Path) -> None:
    launching = launch.Launch(Path("configs/e.yaml"), io.StringIO(), launch.StopSignals(), resume=Path("runs/old"))
    command = launch.node_command(launching, tmp_path, Path("peers.txt"), 3)
    words = list(command.task.arguments)
    given = {name: words[words.index(name) + 1] for name in words if name.startswith("--") and name != "--json"}
    assert (command.task.module, words[0]) == ("ringwide.node", "--json")
    assert given == {
        "--peers": "peers.txt",
        "--config": str(tmp_path / "experiment.yaml"),
        "--rank": "3",
        "--run-directory": str(tmp_path),
        "--run-id": tmp_path.name,
        "--resume": "runs/old",
    }
    here = os.getcwd()
    assert command.task.import_from == [f"{here}/configs", here]
