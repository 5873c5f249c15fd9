"""Every piece of Python in docs/integrations.md runs, and prints what stands below it. So does the example for DDP.

Pieces for other projects print whose group their DDP model has, and other numbers than with gloo are an error.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from integrations.ray_cluster import cluster_of_three
from integrations.snippets import Snippet, snippets_of
from local_ring import free_peers

ROOT = Path(__file__).parents[2]
SNIPPETS = snippets_of(ROOT / "docs" / "integrations.md")
EXAMPLE = ROOT / "examples" / "digits_ddp.py"
PATIENCE_SECONDS = 240
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]

LIKE_GLOO = ("lightning", "accelerate", "transformers")
PROJECTS = {*LIKE_GLOO, "ray"}
OUR_GROUP = "DistributedDataParallel on ringwide\n"
END_OF_GLOO = "\nimport os, sys\nsys.stdout.flush()\nos._exit(0)\n"
"""A thread of gloo that outlives the interpreter aborts the process; so the interpreter is not ended first."""
TIMES = re.compile(r"^.*_runtime.*\n", re.MULTILINE)

ORDINARY = [snippet for snippet in SNIPPETS if snippet.needs is None]
UNDER_TORCHRUN = [snippet for snippet in ORDINARY if snippet.launcher == "torchrun"]
system = [pytest.mark.system, pytest.mark.timeout(2 * PATIENCE_SECONDS)]


def run(command: list[str], directory: Path) -> str:
    """What it prints, if it ends well."""
    ran = subprocess.run(
        command,
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-5000:]
    return ran.stdout


def named(snippets: list[Snippet]) -> list[object]:
    return [pytest.param(snippet, id=snippet.name) for snippet in snippets]


def test_every_piece_says_how_it_is_run() -> None:
    assert [snippet.name for snippet in SNIPPETS if snippet.launcher is None] == []
    assert {snippet.launcher for snippet in ORDINARY} == {"torchrun", "python"}


def test_each_project_has_a_piece_that_says_whose_group_it_uses() -> None:
    said = [(snippet.needs, snippet.printed) for snippet in SNIPPETS if snippet.needs]
    assert sorted(said) == [(project, OUR_GROUP) for project in sorted(PROJECTS)]


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What was printed under torchrun, a file for each."""
    directory = tmp_path_factory.mktemp("snippets")
    commands = [[str(snippet.write_to(directory))] for snippet in UNDER_TORCHRUN]
    commands.append([str(EXAMPLE), "--epochs", "1"])
    words = [word for command in commands for word in ("--", *command)][1:]
    run([*TORCHRUN, str(Path(__file__).parent / "one_after_the_other.py"), str(directory), *words], directory)
    return directory


class TestUnderTorchrun:
    pytestmark = system

    @pytest.mark.parametrize("snippet", named(UNDER_TORCHRUN))
    def test_a_piece_of_the_document(self, snippet: Snippet, printed: Path) -> None:
        assert (printed / f"{snippet.name}.txt").read_text() == (snippet.printed or "")

    def test_the_example_says_how_long_both_backends_took(self, printed: Path) -> None:
        gloo, ringwide = (printed / f"{EXAMPLE.stem}.txt").read_text().splitlines()
        learnt = re.fullmatch(r"gloo      +\d+\.\d\d s  (\d+\.\d% right)", gloo)
        assert learnt, gloo
        assert re.fullmatch(rf"ringwide  +\d+\.\d\d s  {learnt[1]}", ringwide)


@pytest.mark.system
@pytest.mark.timeout(2 * PATIENCE_SECONDS)
@pytest.mark.parametrize("snippet", named([snippet for snippet in ORDINARY if snippet.launcher == "python"]))
def test_processes_that_know_their_rank(snippet: Snippet, tmp_path: Path) -> None:
    path, (first, second) = snippet.write_to(tmp_path), free_peers(2)
    path.write_text(snippet.code.replace("127.0.0.1:29500", first).replace("127.0.0.1:29501", second))
    ranks = [
        subprocess.Popen([sys.executable, str(path), str(rank)], stdout=subprocess.PIPE, text=True)
        for rank in range(snippet.ranks)
    ]
    assert [process.communicate(timeout=PATIENCE_SECONDS)[0] for process in ranks] == [snippet.printed] * snippet.ranks


@pytest.mark.integrations
@pytest.mark.timeout(3 * PATIENCE_SECONDS)
@pytest.mark.parametrize("snippet", named([snippet for snippet in SNIPPETS if snippet.needs in LIKE_GLOO]))
def test_a_project_gets_the_same_numbers_from_gloo_and_from_ringwide(snippet: Snippet, tmp_path: Path) -> None:
    launcher = TORCHRUN if snippet.launcher == "torchrun" else [sys.executable]
    printed = {}
    for backend in ("gloo", "ringwide"):
        (tmp_path / backend).mkdir()
        script = snippet.write_to(tmp_path / backend)
        end = END_OF_GLOO if backend == "gloo" else ""
        script.write_text(snippet.code.replace('"ringwide"', f'"{backend}"') + end)
        printed[backend] = TIMES.sub("", run([*launcher, str(script)], script.parent).replace(str(script.parent), ""))
    assert printed["ringwide"].count(OUR_GROUP) == 1
    assert printed["gloo"] == printed["ringwide"].replace(OUR_GROUP, OUR_GROUP.replace("ringwide", "gloo"))
    assert printed["gloo"] != OUR_GROUP.replace("ringwide", "gloo")  # there are numbers
    assert snippet.needs != "lightning" or list((tmp_path / "ringwide" / "checkpoints").glob("*.ckpt"))


@pytest.mark.integrations
@pytest.mark.timeout(3 * PATIENCE_SECONDS)
@pytest.mark.parametrize("snippet", named([snippet for snippet in SNIPPETS if snippet.needs == "ray"]))
def test_a_program_for_a_cluster(snippet: Snippet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with cluster_of_three(monkeypatch) as cluster:
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)
        assert OUR_GROUP in run([sys.executable, str(snippet.write_to(tmp_path))], tmp_path)
