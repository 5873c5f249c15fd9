"""The commands as a person runs them: real processes, real signals."""

import json
import os
import random
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from ringwide.experiment.ports import free_ports, write_peers

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[2]
LONG = "name: long\nnodes: 2\ntraining: {hidden_sizes: [8], batch_size: 100, epochs: 1000000}\n"


def ringwide(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "ringwide", *arguments]


class Launcher:
    """`ringwide run`, seen to train, with a handle on each of its nodes."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self._wait_for_a_step()
        self.nodes = _children(process.pid)
        self._handles = [os.pidfd_open(pid) for pid in self.nodes]

    def _wait_for_a_step(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("step "):
                return
        pytest.fail(f"it never trained: {self.process.communicate()[1]}")

    def node_of_rank(self, rank: int) -> int:
        commands = {pid: Path(f"/proc/{pid}/cmdline").read_text().split("\0") for pid in self.nodes}
        return next(pid for pid, command in commands.items() if command[command.index("--rank") + 1] == str(rank))

    def nodes_left(self) -> list[int]:
        """Those that have not ended ten seconds from now. A handle is readable once its process has ended."""
        return [
            pid
            for pid, handle in zip(self.nodes, self._handles, strict=True)
            if not select.select([handle], [], [], 10)[0]
        ]

    def close(self) -> None:
        for handle in self._handles:
            os.close(handle)


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@contextmanager
def launched(directory: Path) -> Iterator[Launcher]:
    experiment = directory / "long.yaml"
    experiment.write_text(LONG)
    with ExitStack() as stack:
        process = stack.enter_context(
            subprocess.Popen(
                ringwide("run", str(experiment)),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, "TMPDIR": str(directory)},
            )
        )
        stack.callback(process.kill)
        launcher = Launcher(process)
        stack.callback(launcher.close)
        assert len(launcher.nodes) == 2
        yield launcher


def test_the_quickstart_learns_and_sums_up() -> None:
    ran = subprocess.run(
        ringwide("run", "configs/quickstart.yaml"), cwd=ROOT, capture_output=True, text=True, timeout=110
    )
    assert ran.returncode == 0, ran.stderr
    rows = re.findall(r"^ +(\d) +(\S+) +(\S+)% +(\S+) +(\S+)%$", ran.stdout, re.MULTILINE)
    assert [int(node) for node, *_ in rows] == [0, 1, 2, 3]
    for _, loss, accuracy, steps_per_second, network in rows:
        assert float(loss) < 0.1
        assert float(accuracy) >= 95
        assert float(steps_per_second) > 0
        assert 0 < float(network) < 100
    assert "all nodes hold the same parameters, to the bit" in ran.stdout


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_no_node_outlives_the_launcher(tmp_path: Path, number: signal.Signals, code: int) -> None:
    with launched(tmp_path) as launcher:
        launcher.process.send_signal(number)
        _, errors = launcher.process.communicate(timeout=30)
        assert launcher.process.returncode == code
        assert launcher.nodes_left() == []
        assert errors == ""
    if number != signal.SIGKILL:
        assert [path.name for path in tmp_path.iterdir()] == ["long.yaml"]  # its temporary directory is gone


def test_a_node_that_dies_is_named_and_ends_the_others(tmp_path: Path) -> None:
    with launched(tmp_path) as launcher:
        os.kill(launcher.node_of_rank(1), signal.SIGKILL)
        _, errors = launcher.process.communicate(timeout=30)
        assert launcher.process.returncode == 1
        assert launcher.nodes_left() == []
    assert re.match(r"ringwide: error: node 1 was killed by SIGKILL; the others were ended\.", errors)


def test_a_mistake_in_the_experiment_starts_nothing(tmp_path: Path) -> None:
    experiment = tmp_path / "e.yaml"
    experiment.write_text("name: t\nnodes: 2\nrings: {}\n")
    ran = subprocess.run(ringwide("run", str(experiment)), capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == f"ringwide: error: {experiment}:3: rings: unknown key; did you mean ring?\n"


def test_a_reader_that_has_had_enough_is_not_an_error() -> None:
    process = subprocess.Popen(ringwide("config", "schema"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.close()
    assert process.communicate(timeout=60)[1] == ""
    assert process.returncode == 141


@pytest.mark.parametrize("size", [2, 3])
def test_nodes_check_their_ring(tmp_path: Path, size: int) -> None:
    write_peers(tmp_path / "peers.txt", free_ports(size, random.Random()))
    common = ["--peers", str(tmp_path / "peers.txt"), "--sizes", "4KiB", "1MiB", "--seconds-per-size", "0"]
    nodes = [
        subprocess.Popen(
            [sys.executable, "-m", "ringwide.node", "--rank", str(rank), *common, *(["--json"] if rank == 1 else [])],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    outputs = [node.communicate(timeout=100) for node in nodes]
    assert [node.returncode for node in nodes] == [0] * size, outputs
    table, document = outputs[0][0].splitlines(), json.loads(outputs[1][0])
    assert table[-1] == f"rank 0 of {size}: {len(table) - 3} all-reduces checked, all right"
    assert (document["rank"], document["size"], document["wrong"]) == (1, size, 0)
    assert len(document["rows"]) == len(table) - 3
    if size > 2:
        assert outputs[2][0] == f"rank 2 of {size}: {len(table) - 3} all-reduces checked, all right\n"
