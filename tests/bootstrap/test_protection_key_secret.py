"""A key is in its file and in memory, and nowhere else: not in what is logged, shown, raised, counted or written."""

import asyncio
import base64
import io
import logging
import os
import random
import re
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ringwide
from local_ring import error_of, free_peers
from ringwide.__main__ import main
from ringwide.bootstrap.protection import make_key_file
from ringwide.experiment.find_peers import free_ports, write_peers


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    make_key_file(tmp_path / "keys.key")
    return tmp_path / "keys.key"


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """Everything that anybody logs, with tracebacks."""
    text, root = io.StringIO(), logging.getLogger()
    handler, level = logging.StreamHandler(text), root.level
    ours = logging.getLogger("ringwide")
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    ours.setLevel(logging.DEBUG)
    yield text
    root.removeHandler(handler)
    root.setLevel(level)
    ours.setLevel(logging.NOTSET)


class Key:
    """One key in every spelling, to look for."""

    def __init__(self, path: Path) -> None:
        raw = bytes.fromhex(path.read_text().split()[1])
        self._spellings = [raw, raw.hex().encode(), raw.hex().upper().encode(), repr(raw)[2:-1].encode()]
        self._spellings += [base64.b64encode(raw).rstrip(b"="), base64.urlsafe_b64encode(raw).rstrip(b"=")]

    def in_(self, data: str | bytes) -> bool:
        """Also a part of it, half as long."""
        data = data.encode(errors="surrogateescape") if isinstance(data, str) else data
        return any(spelling[: len(spelling) // 2] in data for spelling in self._spellings)


def test_the_search_finds_a_key(key_file: Path) -> None:
    key, raw = Key(key_file), bytes.fromhex(key_file.read_text().split()[1])
    for shown in (key_file.read_text(), raw, repr({"key": raw}), base64.b64encode(raw), raw.hex(":").replace(":", "")):
        assert key.in_(shown)
    assert not key.in_("ringwide-key-1")


def everything_of(thing: object, depth: int = 6, seen: set[int] | None = None) -> Iterator[str]:
    """What a debugger or an error reporter would show of an object, and of what it holds."""
    seen = set() if seen is None else seen
    if depth == 0 or id(thing) in seen:
        return
    seen.add(id(thing))
    yield repr(thing)
    module = type(thing).__module__
    inner = list(vars(thing).values()) if module.startswith("ringwide") and hasattr(thing, "__dict__") else []
    inner += list(thing.values()) if isinstance(thing, dict) else list(thing) if isinstance(thing, list | tuple) else []
    for part in inner:
        yield from everything_of(part, depth - 1, seen)


@pytest.mark.parametrize("settings", [{}, {"encrypt": True}], ids=["key", "encrypt"])
async def test_a_ring_with_a_key_shows_it_nowhere(key_file: Path, log: io.StringIO, settings: dict[str, Any]) -> None:
    peers, shown = free_peers(2), []
    config = ringwide.RingConfig(key_file=key_file, **settings)

    async def one(rank: int) -> None:
        async with ringwide.join(rank=rank, peers=peers, config=config) as ring:
            await ring.allreduce(np.ones(5))
            shown.extend(everything_of(ring))
            shown.append(repr(ring.statistics()))

    asyncio.get_running_loop().set_debug(True)
    await asyncio.gather(one(0), one(1))
    shown += [repr(config), config.model_dump_json(), log.getvalue()]
    assert len(shown) > 20
    assert not any(map(Key(key_file).in_, shown))


@contextmanager
def readable_by_all(key_file: Path) -> Iterator[None]:
    key_file.chmod(0o644)
    yield
    key_file.chmod(0o600)


@contextmanager
def with_another_label(key_file: Path) -> Iterator[None]:
    text = key_file.read_text()
    key_file.write_text(text.replace("key-1", "key-0"))
    yield
    key_file.write_text(text)


async def test_errors_and_warnings_about_a_key_do_not_show_it(key_file: Path, tmp_path: Path, log: io.StringIO) -> None:
    make_key_file(tmp_path / "other.key")
    config = {
        name: ringwide.RingConfig(key_file=tmp_path / name, start_timeout_seconds=1.0)
        for name in ("keys.key", "other.key")
    }
    peers = free_peers(2)

    async def one(rank: int, name: str) -> None:
        async with ringwide.join(rank=rank, peers=peers, config=config[name]):
            pass

    errors = await asyncio.gather(one(0, "keys.key"), one(1, "other.key"), return_exceptions=True)
    for spoil in (readable_by_all, with_another_label):
        with spoil(key_file):
            errors.append(await error_of(one(0, "keys.key")))
    assert [type(error).__name__ for error in errors[2:]] == ["ConfigError"] * 2
    told = [line for error in errors for line in traceback.format_exception(error)]  # type: ignore[arg-type]
    assert "does not prove that it has our key" in log.getvalue()
    for name in config:
        assert not any(map(Key(tmp_path / name).in_, [*told, log.getvalue()]))


def test_an_experiment_with_a_key_writes_it_nowhere(
    key_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "work"
    home.mkdir()
    monkeypatch.chdir(home)
    monkeypatch.setenv("RINGWIDE_KEY_FILE", str(key_file))
    write_peers(home / "peers.txt", free_ports(1, random.Random()))
    (home / "e.yaml").write_text(
        "name: t\nnodes: 1\nring: {encrypt: true}\nlogging: verbose\n"
        "training: {hidden_sizes: [8], batch_size: 800, epochs: 1}\n"
    )
    assert main(["node", "--rank", "0", "--peers", "peers.txt", "--config", "e.yaml"]) == 0
    written = [path for path in home.rglob("*") if path.is_file()]
    assert {"results.json", "report.html", "node-0.log"} <= {path.name for path in written}
    key = Key(key_file)
    assert not [path for path in written if key.in_(path.read_bytes())]
    output = capfd.readouterr()
    assert not key.in_(output.out + output.err)


# -- a key in the place of its file's name


EXPERIMENT = (
    "name: t\nnodes: 1\nring: {{{ring}}}\nlogging: verbose\n"
    "training: {{hidden_sizes: [8], batch_size: 800, epochs: 1}}\n"
)
ITSELF = "this is a key itself; name the file that it is in"


@pytest.fixture(params=["whole", "digits"])
def text(request: pytest.FixtureRequest, key_file: Path) -> str:
    """A key as somebody may have copied it."""
    whole = key_file.read_text()
    return f" {whole}" if request.param == "whole" else f"{whole.split()[1]}\n"


@pytest.mark.parametrize("name", ["key_file", "tls.cert", "tls.key", "tls.ca", "key", "listen", "encrypt"])
def test_a_key_in_the_settings_is_not_shown(name: str, text: str, key_file: Path) -> None:
    """Not by pydantic either, which repeats what it refuses. A run's id may be any digest."""
    block, _, last = name.rpartition(".")
    files = dict.fromkeys(("cert", "key", "ca"), "x") | {last: text}
    with pytest.raises(Exception, match=ITSELF) as caught:
        ringwide.RingConfig(**{"lanes": -1, **({"tls": files} if block else {name: text})})
    assert str(caught.value) == f"{name}: {ITSELF}"
    assert not Key(key_file).in_("".join(traceback.format_exception(caught.value)))
    assert ringwide.RingConfig(run_id="0" * 64).run_id


def test_a_key_that_was_never_checked_is_not_shown(text: str, key_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied = ringwide.RingConfig(key_file="x").model_copy(update={"key_file": Path(text)})
    monkeypatch.setenv("RINGWIDE_KEY_FILE", text)
    for config, origin in ((copied, "key_file"), (ringwide.RingConfig(), "RINGWIDE_KEY_FILE")):
        with pytest.raises(ringwide.ConfigError) as caught:
            config.load_protection()
        assert str(caught.value) == f"{origin}: {ITSELF}"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a user works; the key file is elsewhere."""
    home = tmp_path / "work"
    home.mkdir()
    monkeypatch.chdir(home)
    write_peers(home / "peers.txt", free_ports(1, random.Random()))
    (home / "e.yaml").write_text(EXPERIMENT.format(ring=""))
    return home


NODE = ["node", "--rank", "0", "--peers", "peers.txt"]
WAYS = {
    "option": [*NODE, "--key-file", "{text}"],
    "option, experiment": [*NODE, "--config", "e.yaml", "--key-file", "{text}"],
    "set": [*NODE, "--set", "ring.key_file={text}"],
    "set, run": ["run", "e.yaml", "--set", "ring.key_file={text}"],
    "set, dry": ["run", "e.yaml", "--dry-run", "--set", "ring.key_file={text}"],
    "set, tls": ["run", "e.yaml", "--set", "ring.tls={{cert: x, key: {text}, ca: x}}"],
    "set, misspelt": ["run", "e.yaml", "--set", "ring.key_fiel={text}"],
    "set, not even YAML": ["run", "e.yaml", "--set", 'ring.key_file="{text}'],
    "set, elsewhere": ["run", "e.yaml", "--set", "training={text}"],
    "sweep": ["run", "e.yaml", "--set", "sweep.ring.key_file=[{text}, {text}]"],
    "sweep, no list": ["run", "e.yaml", "--set", "sweep.ring.key_file={text}"],
    "unquoted": [*NODE, "--key-file", "ringwide-key-1", "{text}"],
    "variable": NODE,
    "variable, experiment": [*NODE, "--config", "e.yaml"],
}


@pytest.mark.parametrize("way", WAYS)
def test_a_key_on_the_command_line_is_not_repeated(
    way: str,
    text: str,
    key_file: Path,
    home: Path,
    log: io.StringIO,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    if "variable" in way:
        monkeypatch.setenv("RINGWIDE_KEY_FILE", text)
    try:
        code = main([word.format(text=text) for word in WAYS[way]])
    except SystemExit as ended:  # of argparse
        code = ended.code  # type: ignore[assignment]
    output = capfd.readouterr()
    assert code == 2
    assert "error: " in output.err
    assert "Traceback" not in output.err
    key = Key(key_file)
    assert not key.in_(output.out + output.err + log.getvalue())
    assert not [
        path for path in home.rglob("*") if key.in_(str(path)) or (path.is_file() and key.in_(path.read_bytes()))
    ]


@pytest.mark.parametrize("ring", ["key_file: {text}", "tls: {{cert: x, key: {text}, ca: x}}"])
def test_a_key_in_an_experiment_is_not_repeated(
    ring: str, text: str, key_file: Path, home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (home / "e.yaml").write_text(EXPERIMENT.format(ring=ring.format(text=text.strip())))
    for command in (["run", "e.yaml"], ["run", "e.yaml", "--dry-run"], [*NODE, "--config", "e.yaml"]):
        assert main(command) == 2
        output = capfd.readouterr()
        assert (output.out, output.err.count("\n")) == ("", 1)
        assert ITSELF in output.err
        assert not Key(key_file).in_(output.err)
    assert {path.name for path in home.iterdir()} == {"peers.txt", "e.yaml"}


@pytest.mark.system
def test_nodes_that_are_given_a_key_for_its_file_write_it_nowhere(key_file: Path, home: Path) -> None:
    command = [sys.executable, "-m", "ringwide", "run", "e.yaml"]  # alone: nodes inherit from the first of a process
    environment = {**os.environ, "RINGWIDE_KEY_FILE": key_file.read_text()}
    output = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=110)
    assert output.returncode != 0
    assert f"RINGWIDE_KEY_FILE: {ITSELF}" in output.stderr
    written = [path for path in home.rglob("*") if path.is_file()]
    assert not list(home.glob("runs/*")), "nothing is left of a start that was refused"
    key = Key(key_file)
    assert not [path for path in written if key.in_(path.read_bytes())]
    assert not key.in_(output.stdout + output.stderr)


def test_keygen_tells_what_to_do_next_and_not_the_key(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "ring.key"
    assert main(["keygen", str(path)]) == 0
    output = capfd.readouterr()
    assert output.err == ""
    assert str(path) in output.out
    assert re.search(r"every machine.*key_file.*--key-file.*RINGWIDE_KEY_FILE", output.out, re.DOTALL)
    assert not Key(path).in_(output.out)
    assert main(["keygen", str(path)]) == 2
    assert "there is such a file already" in capfd.readouterr().err


@pytest.mark.parametrize("command", [["node", "--help"], ["keygen", "--help"], ["run", "--help"]])
def test_no_command_takes_a_key(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(command)
    options = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
    assert not options & {"--key", "--secret", "--password", "--token"}
