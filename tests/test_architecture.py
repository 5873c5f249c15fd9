"""The shape of the house: imports go down only, and some things are kept out of some rooms."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import ringwide

SOURCE = Path(ringwide.__file__).parent

FLOORS = (
    ("callers", "errors", "latch", "registration", "setting_marks"),
    ("protocol", "pending"),
    ("background",),
    ("codec", "transport"),
    ("collective", "membership"),
    ("p2p",),
    ("awaitable", "claims"),
    ("buckets", "calls", "connections", "farewell", "observe", "written"),
    (
        "collected",
        "config",
        "familiar",
        "messages",
        "nonfinite",
    ),  # above the rooms that take plain arguments, never settings
    ("bringing", "exchange"),
    ("point_to_point",),
    ("engine", "plans"),
    ("ring",),
    ("blocking", "training", "interop", "simulator"),
    ("experiment",),
    ("command",),
    ("node",),
    ("__init__",),
    ("__main__",),
)
FLOOR_OF = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}

KNOW_TORCH = ("buckets", "training", "experiment", "interop", "observe")  # observe: its check makes bfloat16 buffers
FORBIDDEN_NAMES = {"utils", "util", "helpers", "helper", "common", "manager", "misc"}


@dataclass(frozen=True, slots=True)
class Import:
    """One import: which file, which line, what."""

    path: Path
    line: int
    module: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(SOURCE)}:{self.line} imports {self.module}"


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def room_of(path: Path) -> str:
    first, *rest = path.relative_to(SOURCE).parts
    return first if rest else path.stem


def imports_of(path: Path) -> Iterator[Import]:
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Import(names=names):
                yield from (Import(path, node.lineno, alias.name) for alias in names)
            case ast.ImportFrom(module=None) | ast.ImportFrom(level=1 | 2 | 3):
                pytest.fail(f"{path}:{node.lineno}: a relative import")
            case ast.ImportFrom(module="ringwide", names=names):
                yield from (Import(path, node.lineno, _from_the_door(alias.name)) for alias in names)
            case ast.ImportFrom(module=str(module)):
                yield Import(path, node.lineno, module)


def _from_the_door(name: str) -> str:
    return f"ringwide.{name}" if name in FLOOR_OF else "ringwide.__init__"


ALL_IMPORTS = [found for path in modules() for found in imports_of(path)]


def test_every_module_has_a_floor() -> None:
    assert {room_of(path) for path in modules()} <= FLOOR_OF.keys()


def test_imports_go_down_only() -> None:
    upward = [found for found in ALL_IMPORTS if found.module.startswith("ringwide.") and not goes_down(found)]
    assert not upward, "\n".join(map(str, upward))


def goes_down(found: Import) -> bool:
    here, there = room_of(found.path), found.module.split(".")[1]
    return here == there or FLOOR_OF[there] < FLOOR_OF[here]


def test_the_protocol_knows_no_io_no_clock_and_no_numbers() -> None:
    outside = {
        "asyncio",
        "numpy",
        "socket",
        "selectors",
        "ssl",
        "time",
        "datetime",
        "random",
        "threading",
        "torch",
        "os",
    }
    assert not imports_in("protocol", outside)


def test_a_codec_never_sees_a_socket_and_transport_never_a_number() -> None:
    assert not imports_in("codec", {"socket", "asyncio", "ssl"})
    assert not imports_in("transport", {"numpy", "torch"})


def test_the_simulator_has_no_time_but_its_own() -> None:
    found = imports_in("simulator", {"asyncio", "socket", "threading", "time", "datetime"})
    real = {"__main__.py", "processes.py"}  # which measures how fast it is; and where nothing is simulated
    programs = {"loop.py", "performer.py", "engine.py", "world.py"}  # asyncio, on loops whose time is virtual
    strangers = [entry for entry in found if entry.path.name not in real]
    assert {(entry.path.name, entry.module) for entry in strangers} == {(name, "asyncio") for name in programs}


def test_torch_stays_where_it_belongs() -> None:
    strangers = [found for found in ALL_IMPORTS if top(found) == "torch" and room_of(found.path) not in KNOW_TORCH]
    assert not strangers, "\n".join(map(str, strangers))


def test_buckets_and_observe_import_torch_only_when_asked() -> None:
    eager = [
        found
        for found in ALL_IMPORTS
        if top(found) == "torch" and room_of(found.path) in ("buckets", "observe") and at_the_top(found)
    ]
    assert not eager, "\n".join(map(str, eager))


def at_the_top(found: Import) -> bool:
    body = ast.parse(found.path.read_text()).body
    return any(isinstance(node, ast.Import | ast.ImportFrom) and node.lineno == found.line for node in body)


def imports_in(room: str, names: set[str]) -> list[Import]:
    return [found for found in ALL_IMPORTS if room_of(found.path) == room and top(found) in names]


def top(found: Import) -> str:
    return found.module.partition(".")[0]


def test_no_module_has_a_name_that_says_nothing() -> None:
    parts = {part for path in modules() for part in path.relative_to(SOURCE).with_suffix("").parts}
    assert not parts & FORBIDDEN_NAMES


# The door is light


@pytest.mark.parametrize(
    ("statement", "not_loaded"),
    [
        ("import ringwide", {"torch", "numpy", "pydantic", "asyncio", "uvloop", "yaml", "sklearn", "lz4"}),
        ("import ringwide; ringwide.join, ringwide.RingConfig", {"torch", "sklearn", "ringwide.training"}),
        ("import ringwide.simulator", {"torch", "pydantic", "yaml", "sklearn"}),
        ("import ringwide.__main__, ringwide.node", {"torch", "numpy", "sklearn"}),
    ],
)
def test_an_import_loads_only_what_it_needs(statement: str, not_loaded: set[str]) -> None:
    """What is not loaded costs no time: this is why `import ringwide` and `--help` answer at once."""
    script = f"import sys; {statement}; print(*sorted(set(sys.modules) & {not_loaded!r}))"
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=110, check=True)
    assert answer.stdout.split() == []
