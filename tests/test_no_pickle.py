"""Nothing from a network or a file is executed: shown by reading the source, and by listening to real runs."""

import ast
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import ringwide
from ringwide.experiment.find_peers import free_ports, write_peers

SOURCE = Path(ringwide.__file__).parent
TESTS = Path(__file__).parent

# -- the source

EXECUTES_DATA = {
    "pickle",
    "_pickle",
    "marshal",
    "shelve",
    "dill",
    "cloudpickle",
    "joblib",
    "jsonpickle",
    "copyreg",
    "code",
}
TAKES_CODE = {"eval", "exec", "compile", "__import__", "builtins.eval", "builtins.exec", "builtins.compile"}
TAKES_COMMANDS = {"os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"}
UNPICKLES = {"yaml.unsafe_load", "yaml.unsafe_load_all", "yaml.full_load", "yaml.full_load_all"} | {
    f"{module}.{name}" for module in ("np", "numpy") for name in ("load", "fromfile", "lib.format.read_array")
}
SAFE_LOADERS = ("yaml.SafeLoader", "yaml.CSafeLoader")
# Its processes pass pickles through pipes that they inherit: between a launcher and what it forked, never from outside.
MAY_FORK = {
    "experiment/forkserver.py",
    "experiment/worker.py",
    "simulator/ring_life.py",
    "simulator/programs/processes.py",
}
HEARS_OF_ITS_END = {"runtime/background_loop.py"}  # where somebody else has started the process so; it passes nothing


def dangers(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and text of everything that could execute data."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                found = [alias.name for alias in names if alias.name.partition(".")[0] in EXECUTES_DATA]
            case ast.ImportFrom(module=str(module), names=names):
                whole = {f"{module}.{alias.name}" for alias in names}
                found = [module] if module.partition(".")[0] in EXECUTES_DATA else sorted(whole & HIDDEN)
            case ast.Call() if executes_data(node):
                found = [ast.unparse(node)]
            case _:
                found = []
        yield from ((node.lineno, text) for text in found)  # type: ignore[attr-defined]


HIDDEN = {"torch.load", "yaml.load", "yaml.load_all", "numpy.load", "os.system", "os.popen", *UNPICKLES}
"""What must not be imported by its bare name: its calls could not be told from others."""


def executes_data(call: ast.Call) -> bool:
    arguments = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    name = ast.unparse(call.func)
    if name in TAKES_CODE | TAKES_COMMANDS | UNPICKLES or arguments.get("shell", "False") != "False":
        return True
    if name in ("yaml.load", "yaml.load_all", "yaml.compose"):
        return arguments.get("Loader") not in SAFE_LOADERS
    return name == "torch.load" and arguments.get("weights_only") != "True"


def test_nothing_in_the_source_executes_data() -> None:
    found = [
        f"{path.relative_to(SOURCE)}:{line}: {text}"
        for path in sorted(SOURCE.rglob("*.py"))
        for line, text in dangers(ast.parse(path.read_text()))
    ]
    assert not found, "\n".join(found)


def test_who_forks_is_known() -> None:
    forking = {str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py") if "multiprocessing" in path.read_text()}
    assert forking <= MAY_FORK | HEARS_OF_ITS_END


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import marshal as m",
        "from pickle import loads",
        "import torch, dill",
        "eval(x)",
        "exec(text)",
        "compile(text, 'a', 'exec')",
        "yaml.load(x)",
        "yaml.load(x, Loader=yaml.Loader)",
        "yaml.unsafe_load(x)",
        "from yaml import load",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "from torch import load",
        "np.load(path)",
        "subprocess.run(words, shell=True)",
        "subprocess.Popen(words, shell=wanted)",
        "os.system('ls')",
    ],
)
def test_the_reader_of_sources_sees(source: str) -> None:
    assert list(dangers(ast.parse(source)))


@pytest.mark.parametrize(
    "source",
    [
        "import json",
        "re.compile(pattern)",
        "yaml.load(x, Loader=yaml.SafeLoader)",
        "torch.load(path, weights_only=True)",
        "subprocess.run(words)",
        "json.loads(x)",
        "self.load(x)",
    ],
)
def test_the_reader_of_sources_lets_pass(source: str) -> None:
    assert not list(dangers(ast.parse(source)))


# -- real runs


def start(module: str, *words: str, report: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, str(TESTS / "audited.py"), str(report), module, *words]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SOURCE.parent), str(report.parent)])}
    return subprocess.Popen(
        command, cwd=report.parent, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def heard(process: "subprocess.Popen[str]", report: Path) -> list[str]:
    """The events of a run that has gone well."""
    try:
        output = process.communicate(timeout=100)[0]
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, output
    return report.read_text().splitlines()


EXPERIMENT = """\
name: t
nodes: 2
training: {hidden_sizes: [8], batch_size: 800, epochs: 1}
ring: {codec: int8, allow_lossy: true, algorithm: ring, segment_bytes: 4KiB, threshold_bytes: 1KiB}
checkpoint: {every_steps: 1}
report: {html: false}
"""


@pytest.mark.system
def test_nothing_is_unpickled_in_a_run(tmp_path: Path) -> None:
    (tmp_path / "e.yaml").write_text(EXPERIMENT)
    checking, training = ["--sizes", "4KiB", "1MiB", "--seconds-per-size", "0"], ["--config", "e.yaml"]
    runs = []
    ports = free_ports(4, random.Random())
    for name, what, ours in (("check", checking, ports[:2]), ("train", training, ports[2:])):
        write_peers(tmp_path / f"{name}.txt", ours)
        for rank in range(2):
            report = tmp_path / f"{name}-{rank}"
            words = ["--rank", str(rank), "--peers", f"{name}.txt", *what]
            runs.append((start("ringwide.node", *words, report=report), report))
    events = [heard(process, report) for process, report in runs]
    node = f"exec {SOURCE / 'node.py'}"  # what was asked for
    assert events == [[node]] * 4


def test_the_ear_hears_what_it_listens_for(tmp_path: Path) -> None:
    """The control: a module that does all of it."""
    (tmp_path / "guilty.py").write_text(
        "import collections, marshal, pickle\n"
        "pickle.loads(pickle.dumps(collections.OrderedDict()))\n"
        "exec(compile('1 + 1', 'from the network', 'exec'))\n"
        "marshal.loads(marshal.dumps([1]))\n"
    )
    report = tmp_path / "report"
    _, *events = heard(start("guilty", report=report), report)
    assert [event.split()[0] for event in events] == ["pickle.find_class", "exec", "marshal.loads"]
    assert "OrderedDict" in events[0]
    assert "from the network" in events[1]
