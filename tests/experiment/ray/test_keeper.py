"""A keeper without Ray: it keeps a real node, which is alone in its ring."""

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ringwide.bootstrap.protection import new_key
from ringwide.errors import RingwideError
from ringwide.experiment.node_messages import decode
from ringwide.experiment.ray import keeper as keepers
from ringwide.experiment.ray.keeper import Keeper, NewOutput, Order, our_version
from ringwide.training.progress import Result

EXPERIMENT = "name: t\nnodes: 1\nlogging: verbose\ntraining: {model: linear, data: clusters, steps: 3}\n"
SPEAKS = "import os, sys; print(os.environ.get('RINGWIDE_SET'), os.getcwd()); print('oh', file=sys.stderr)"


@pytest.fixture
async def keeper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Keeper]:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    found = Keeper()
    yield found
    await found.end()
    assert list((tmp_path / "scratch").iterdir()) == []


def order(directory: Path, peer: str = "127.0.0.1:1", key: str | None = None) -> Order:
    return Order(
        rank=0,
        experiment=EXPERIMENT,
        directory=None,
        peers=(peer,),
        working_directory=str(directory),
        import_from=(),
        resume=None,
        threads=1,
        variables={"RINGWIDE_SET": "ours"},
        key=key,
    )


@pytest.fixture
def codes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], int]:
    """Takes what is run instead of a node: as the module `spoken`, from its working directory."""
    monkeypatch.setattr(keepers, "CHILD", "spoken")
    return (tmp_path / "spoken.py").write_text


def texts_below(directory: Path) -> list[bytes]:
    found = [path.read_bytes() for path in directory.rglob("*") if path.is_file()]
    assert found
    return found


async def everything(keeper: Keeper) -> NewOutput:
    output: list[str] = []
    errors: list[str] = []
    while True:
        new = await keeper.poll()
        output += new.output
        errors += new.errors
        if new.code is not None:
            return NewOutput(tuple(output), tuple(errors), new.code)


@pytest.mark.system
async def test_a_node_runs_with_a_key_that_is_in_no_file(keeper: Keeper, tmp_path: Path) -> None:
    address = await keeper.listen("127.0.0.1", 0)
    key = new_key()
    await keeper.start(replace(order(tmp_path, address, key), variables={}))
    said = await everything(keeper)
    assert said.code == 0, said.errors
    assert isinstance(decode(said.output[-1]), Result)
    log = await keeper.log(0)
    assert b"step=3 " in log
    assert await keeper.log(len(log)) == b""
    assert not any(key.split()[1].encode() in text for text in texts_below(tmp_path))


async def test_what_a_node_says_and_where_it_runs(
    keeper: Keeper, codes: Callable[[str], int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RINGWIDE_SET", "of those who started Ray")
    codes(f"{SPEAKS}\nraise SystemExit(7)")
    await keeper.start(order(tmp_path))
    assert await everything(keeper) == NewOutput((f"ours {tmp_path}",), ("oh",), 7)


async def test_a_signal_reaches_the_node(keeper: Keeper, codes: Callable[[str], int], tmp_path: Path) -> None:
    codes("import signal; print('here', flush=True); signal.pause()")
    await keeper.signal(signal.SIGTERM)  # there is no node yet
    await keeper.start(order(tmp_path))
    assert (await keeper.poll()).output == ("here",)
    await keeper.signal(signal.SIGTERM)
    assert (await everything(keeper)).code == -signal.SIGTERM
    await keeper.signal(signal.SIGTERM)  # nor any more


async def test_a_node_whose_words_nobody_takes_waits(
    keeper: Keeper, codes: Callable[[str], int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keepers, "MOST_HELD", 1000)
    codes("for number in range(20_000): print(f'{number:099}')")
    await keeper.start(order(tmp_path))
    new, sizes = await keeper.poll(), []
    while new.code is None:
        sizes.append(len(new.output))
        new = await keeper.poll()
    assert sum(sizes) + len(new.output) == 20_000
    assert max(sizes) <= 11


async def test_where_it_is(keeper: Keeper, tmp_path: Path) -> None:
    (tmp_path / "experiment.yaml").write_text("name: t\n")
    found = await keeper.inspect(str(tmp_path), "name: t\n")
    assert (found.version, found.sees_directory) == (our_version(), True)
    assert not (await keeper.inspect(str(tmp_path), "name: other\n")).sees_directory
    assert not (await keeper.inspect(str(tmp_path / "gone"), "name: t\n")).sees_directory


async def test_a_port_that_was_promised_is_held(keeper: Keeper) -> None:
    host, _, port = (await keeper.listen("127.0.0.1", 0)).partition(":")
    with socket.socket() as other, pytest.raises(OSError):
        other.bind((host, int(port)))


async def test_an_address_of_another_machine_is_an_error_that_can_be_pickled(keeper: Keeper) -> None:
    with pytest.raises(RingwideError, match=r"rank 2 cannot listen on 192\.0\.2\.77:0") as caught:
        await keeper.listen("192.0.2.77", 2)
    assert type(caught.value) is RingwideError


def test_a_node_does_not_begin_if_its_keeper_is_gone_already(tmp_path: Path) -> None:
    nobody = os.getppid()  # the keeper is said to be one that has not started it
    command = [sys.executable, "-m", "ringwide.experiment.ray.child", str(nobody), "", "--rank", "0"]
    assert subprocess.run(command, timeout=60, check=False).returncode == -signal.SIGKILL


KEEPER = """
import os, subprocess, sys
words = ["--rank", "0", "--peers", "peers.txt", "--config", sys.argv[1]]
command = [sys.executable, "-m", "ringwide.experiment.ray.child", str(os.getpid()), "", *words]
node = subprocess.Popen(command)
print(node.pid, flush=True)
node.wait()
"""


def test_a_node_that_does_nothing_ends_with_its_keeper(tmp_path: Path) -> None:
    """It waits for an experiment that nobody writes: neither a closed pipe nor a lost peer can tell it."""
    os.mkfifo(experiment := tmp_path / "experiment.yaml")
    with subprocess.Popen([sys.executable, "-c", KEEPER, experiment], stdout=subprocess.PIPE, text=True) as keeper:
        assert keeper.stdout is not None
        node = int(keeper.stdout.readline())
        with experiment.open("w"):  # returns when the node reads
            descriptor = os.pidfd_open(node)
            keeper.kill()
            gone, _, _ = select.select([descriptor], [], [], 60)
            if not gone:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            os.close(descriptor)
    assert gone
