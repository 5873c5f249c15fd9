"""Node without --rank and --peers, which come from variables. It is alone here; several are in tests/system."""

import os
import random
from pathlib import Path

import pytest

from ringwide.experiment.find_peers import free_ports, write_peers
from ringwide.node import main

QUICK = ["--sizes", "64", "--seconds-per-size", "0"]
SPOKEN_FOR = ("RINGWIDE_", "SLURM_", "OMPI_", "PMI", "TORCHELASTIC_", "MASTER_")


@pytest.fixture(autouse=True)
def nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has started the tests, these nodes were started by nobody."""
    monkeypatch.chdir(tmp_path)
    for name in os.environ:
        if name.startswith(SPOKEN_FOR) or name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
            monkeypatch.delenv(name)


def told(monkeypatch: pytest.MonkeyPatch, **environ: str) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)


def test_a_node_says_on_which_word_it_is_rank_0(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told(monkeypatch, RANK="0", WORLD_SIZE="1")
    assert main(QUICK) == 0
    output = capsys.readouterr()
    assert output.out.splitlines()[-1].startswith("rank 0 of 1: ")
    assert output.err == "ringwide: rank 0 of 1, from the environment (RANK, WORLD_SIZE; alone)\n"


def test_an_experiment_is_placed_in_the_same_way(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told(monkeypatch, OMPI_COMM_WORLD_RANK="0", OMPI_COMM_WORLD_SIZE="1")
    (tmp_path / "e.yaml").write_text(
        "name: t\nnodes: 1\ntraining: {hidden_sizes: [8], steps: 2}\nreport: {html: false}"
    )
    assert main(["--config", "e.yaml"]) == 0
    assert "report: runs/t-" in capsys.readouterr().out


def test_options_go_before_whatever_is_in_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told(monkeypatch, RANK="7", WORLD_SIZE="nonsense", SLURM_PROCID="1")
    write_peers(tmp_path / "peers.txt", free_ports(1, random.Random()))
    assert main(["--rank", "0", "--peers", "peers.txt", *QUICK]) == 0
    assert capsys.readouterr().err == ""


def test_a_peers_file_is_enough_where_somebody_else_says_the_rank(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told(monkeypatch, SLURM_PROCID="0", SLURM_NTASKS="1")
    write_peers(tmp_path / "peers.txt", free_ports(1, random.Random()))
    assert main(["--peers", "peers.txt", *QUICK]) == 0
    assert "rank 0 of 1, from Slurm (SLURM_PROCID, SLURM_NTASKS; peers of peers.txt)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("environ", "arguments", "message"),
    [
        ({}, [], "nothing says which rank this is: give --rank and --peers, or start it with torchrun"),
        ({}, ["--rank", "0"], "--rank 0: without --peers (or RINGWIDE_PEERS) the others are not found"),
        ({"RANK": "0"}, [], "RANK is set (to 0), but WORLD_SIZE is not"),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, [], "SLURM_NTASKS is 4, but this process was not started by srun"),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, [], "nothing says where the ranks meet"),
        ({"RANK": "1", "WORLD_SIZE": "3"}, ["--peers", "peers.txt"], "WORLD_SIZE is 3, but peers.txt names 2 peers"),
        ({"RINGWIDE_RANK": "0", "RINGWIDE_PEERS": "no.txt"}, [], "no.txt: there is no such peers file"),
    ],
)
@pytest.mark.parametrize("experiment", [False, True])
def test_a_mistake_is_one_sentence_and_2(
    environ: dict[str, str],
    arguments: list[str],
    message: str,
    experiment: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    told(monkeypatch, **environ)
    write_peers(tmp_path / "peers.txt", free_ports(2, random.Random()))
    (tmp_path / "e.yaml").write_text("name: t\nnodes: 2\n")
    assert main([*arguments, *(["--config", "e.yaml"] if experiment else QUICK)]) == 2
    *_, error = capsys.readouterr().err.splitlines()
    assert error.startswith("ringwide: error: ")
    assert message in error
    assert not (tmp_path / "runs").exists()
