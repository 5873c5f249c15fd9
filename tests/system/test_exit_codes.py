"""Exit codes are those of docs/operators.md: in the code, and of commands that really end so."""

import inspect
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from local_ring import free_peers
from ringwide import errors
from ringwide.config.command_exit import ENDED_BY_SIGNAL
from ringwide.experiment.report.run_files import FORMAT as FORMAT_OF_RESULTS
from ringwide.experiment.stop_signals import SIGNALS
from ringwide.protocol.frame import VERSION
from ringwide.training.checkpoint import FORMAT

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operators.md").read_text()
PATIENCE_SECONDS = 110

Node = subprocess.Popen[str]


def rows(heading: str) -> list[list[str]]:
    """Cells of the tables of a section, without their head."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def documented() -> dict[int, str]:
    """The error by its code."""
    table = [row for row in rows("Exit codes") if re.match(r"\d", row[0])]
    return {int(code): row[1].strip("`") for row in table for code in row[0].split(",")}


def test_the_table_has_every_code() -> None:
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.RingwideError)]
    of_errors = {kind.exit_code: kind.__name__ for kind in kinds if "exit_code" in vars(kind)}
    of_signals = {ENDED_BY_SIGNAL + number: "" for number in (*SIGNALS, signal.SIGPIPE)}
    assert documented() == {0: "", **of_errors, **of_signals}


def test_what_is_said_of_versions_and_formats_is_so() -> None:
    assert f"The wire has a version of its own, now {VERSION} " in PAGE
    assert f"**Checkpoints** have a format, now {FORMAT}." in PAGE
    assert f"`not a checkpoint of format {FORMAT}`" in PAGE
    assert f"have format {FORMAT_OF_RESULTS};" in PAGE


def test_the_words_of_log_lines_are_in_the_code_of_their_logger() -> None:
    table = [row for row in rows("What to watch") if "`ringwide." in row[1]]
    assert len(table) >= 10
    for words, logger, _ in table:
        room = ROOT / "src" / logger.strip("`").replace(".", "/")
        assert any(words.strip("`") in path.read_text() for path in room.glob("*.py")), words


@contextmanager
def nodes_of(directory: Path, *arguments: str, started: int = 2) -> Iterator[list[Node]]:
    (directory / "peers.txt").write_text("\n".join(free_peers(2)))
    command = [sys.executable, "-m", "ringwide.node", "--peers", "peers.txt", *arguments]
    nodes = [
        subprocess.Popen(
            [*command, "--rank", str(rank)], cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for rank in range(started)
    ]
    try:
        yield nodes
    finally:
        for node in nodes:
            node.kill()
            node.communicate()


def codes_of(nodes: list[Node]) -> list[int]:
    for node in nodes:
        node.wait(timeout=PATIENCE_SECONDS)
    return [node.returncode for node in nodes]


@pytest.mark.system
class TestNodes:
    def test_a_ring_that_is_right_is_0(self, tmp_path: Path) -> None:
        with nodes_of(tmp_path, "--sizes", "4KiB", "--seconds-per-size", "0") as nodes:
            assert codes_of(nodes) == [0, 0]

    def test_a_wrong_setting_is_2(self, tmp_path: Path) -> None:
        with nodes_of(tmp_path, "--set", "ring.lanes=none", started=1) as nodes:
            assert codes_of(nodes) == [2]

    def test_a_rank_that_does_not_come_is_3(self, tmp_path: Path) -> None:
        with nodes_of(tmp_path, "--set", "ring.start_timeout_seconds=1", started=1) as nodes:
            assert codes_of(nodes) == [3]

    @pytest.mark.parametrize(
        ("number", "code"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 143), (signal.SIGINT, 130)]
    )
    def test_a_rank_that_ends_is_5_for_the_other(self, number: signal.Signals, code: int, tmp_path: Path) -> None:
        with nodes_of(tmp_path, "--sizes", "4KiB", "--seconds-per-size", "3600") as nodes:
            assert nodes[0].stdout is not None
            nodes[0].stdout.readline()  # the head of the table: the ring has formed
            nodes[1].send_signal(number)
            assert codes_of(nodes) == [5, code]
