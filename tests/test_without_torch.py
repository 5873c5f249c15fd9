"""A machine without torch: what needs it says so in one sentence, and everything else works."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from ringwide.config.ring_config import CODECS
from ringwide.errors import TorchMissing
from ringwide.experiment.find_peers import free_ports, write_peers

pytestmark = pytest.mark.system

QUICKSTART = Path(__file__).parent.parent / "configs" / "quickstart.yaml"
HIDE_TORCH = """
from importlib.machinery import PathFinder

find = PathFinder.find_spec
PathFinder.find_spec = lambda name, path=None, target=None: None if name == "torch" else find(name, path, target)
"""
"""Python's start, after which torch is not installed: for this process and those that it starts."""

RING = """
import sys
import numpy
import ringwide
from ringwide.config.ring_config import CODECS

for codec in CODECS:
    config = ringwide.RingConfig(codec=codec, allow_lossy=True)
    with ringwide.join_blocking(rank=int(sys.argv[1]), peers=f"{codec}.txt", config=config) as ring:
        grads = {"weight": numpy.full(300_000, 4.0 * ring.rank, "f4"), "half": numpy.ones(3, "f2")}
        ring.allreduce(grads)
        assert codec == "topk" or abs(grads["weight"] - 2.0).max() < 0.1, (codec, grads)
        assert len(ring.all_gather(grads["half"])) == 2
        ring.state_dict()
print(len(CODECS), "rings, torch:", "torch" in sys.modules)
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "start").mkdir()
    (tmp_path / "start" / "sitecustomize.py").write_text(HIDE_TORCH)
    paths = [str(tmp_path / "start"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def ended(command: list[str], environment: dict[str, str], directory: Path) -> tuple[int, str, str]:
    ran = subprocess.run(
        [sys.executable, *command], env=environment, cwd=directory, capture_output=True, text=True, timeout=110
    )
    return ran.returncode, ran.stdout, ran.stderr


def missing(what: str) -> str:
    return f"ringwide: error: {TorchMissing(what)}\n"


@pytest.mark.parametrize(
    ("command", "what"),
    [
        (["ringwide", "run", str(QUICKSTART)], "an experiment"),
        (["ringwide", "run", str(QUICKSTART), "--dry-run"], "an experiment"),
        (["ringwide", "node", "--rank", "0", "--peers", "peers.txt", "--config", str(QUICKSTART)], "an experiment"),
        (["ringwide.node", "--rank", "0", "--peers", "peers.txt", "--config", str(QUICKSTART)], "an experiment"),
        (["ringwide.node"], "a ring without a peers file"),
    ],
)
def test_a_command_that_needs_torch_says_so(
    command: list[str], what: str, environment: dict[str, str], tmp_path: Path
) -> None:
    by_launcher = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    code, out, error = ended(["-m", *command], environment | by_launcher, tmp_path)
    assert (code, out, error) == (2, "", missing(what))
    assert error.endswith("needs torch, which is not installed: pip install 'ringwide[torch]'\n")


@pytest.mark.parametrize(
    "command",
    [
        ["ringwide", "--help"],
        ["ringwide", "config", "schema"],
        ["ringwide", "config", "keys"],
        ["ringwide", "config", "settings"],
        ["ringwide", "keygen", "ring.key"],
        ["ringwide.simulator", "--seeds", "3"],
        ["ringwide.simulator", "--programs", "3"],
    ],
)
def test_a_command_that_does_not_need_torch_works(
    command: list[str], environment: dict[str, str], tmp_path: Path
) -> None:
    code, out, error = ended(["-m", *command], environment, tmp_path)
    assert (code, error) == (0, "")
    assert out


def test_a_node_checks_its_ring(environment: dict[str, str], tmp_path: Path) -> None:
    write_peers(tmp_path / "peers.txt", free_ports(1, random.Random()))
    command = ["-m", "ringwide.node", "--rank", "0", "--peers", "peers.txt", "--sizes", "64", "--seconds-per-size", "0"]
    code, out, error = ended(command, environment, tmp_path)
    assert (code, error) == (0, "")
    assert out.endswith("all right; bfloat16 needs torch on every rank\n")


def test_arrays_go_round_a_ring_with_every_codec(environment: dict[str, str], tmp_path: Path) -> None:
    ports = free_ports(2 * len(CODECS), random.Random())
    for index, codec in enumerate(CODECS):  # a place for each: a rank that is still leaving one ring has no other
        write_peers(tmp_path / f"{codec}.txt", ports[2 * index : 2 * index + 2])
    (tmp_path / "ring.py").write_text(RING)
    ranks = [
        subprocess.Popen(
            [sys.executable, "ring.py", str(rank)],
            env=environment,
            cwd=tmp_path,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for rank in range(2)
    ]
    assert [rank.communicate(timeout=110)[0] for rank in ranks] == [f"{len(CODECS)} rings, torch: False\n"] * 2


@pytest.mark.parametrize("name", ["RingState", "allreduce_hook"])
def test_the_hook_for_ddp_says_what_it_needs(name: str, environment: dict[str, str], tmp_path: Path) -> None:
    script = f"""
import ringwide.torch
try:
    from ringwide.torch import {name}
except ImportError as error:
    print(error.name, error)
"""
    code, out, error = ended(["-c", script], environment, tmp_path)
    assert (code, error) == (0, "")
    assert out == f"torch {TorchMissing(f'ringwide.torch.{name}')}\n"
