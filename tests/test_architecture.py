"""The shape of the house: imports go down only, some things are kept out of some rooms, and nothing grows too large."""

import ast
import re
import subprocess
import sys
from collections import Counter
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from tests.marked import DESIGN, marked
from tests.rooms import (
    FLOOR_OF,
    FLOORS,
    MARK,
    SOURCE,
    Import,
    drawing,
    imports,
    modules,
    own_imports,
    room_of,
    tree_of,
)

TESTS = Path(__file__).parent

KNOW_TORCH = ("training", "experiment", "torch", "observe")  # observe: its check makes bfloat16 buffers
FORBIDDEN_NAMES = {"utils", "util", "helpers", "helper", "common", "manager", "misc"}

MOST_LINES = 400
MOST_FILES = 180
MOST_AT_THE_ROOT = 8
MOST_FLOORS_BETWEEN = 8

QUESTIONS = ("What", "Who", "How", "Where", "Which", "Whether", "When")
"""A docstring starts with its noun, not with the question that the file answers."""


def lines_of(module: str) -> int:
    return len(modules()[module].read_text().splitlines())


# -- the floors


def test_every_module_has_a_floor() -> None:
    assert {room_of(module) for module in modules()} == FLOOR_OF.keys()


def test_imports_go_down_only() -> None:
    upward = [
        found
        for importer, module, found in own_imports()
        if room_of(importer) != room_of(module) and FLOOR_OF[room_of(module)] >= FLOOR_OF[room_of(importer)]
    ]
    assert not upward, "\n".join(map(str, upward))


def test_no_modules_import_each_other_in_a_circle() -> None:
    below: dict[str, set[str]] = {module: set() for module in modules()}
    for importer, module, _ in own_imports():
        below[importer].add(module)
    try:
        TopologicalSorter(below).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_few_floors_lie_between_the_ring_and_the_protocol() -> None:
    assert FLOOR_OF["ring"] - FLOOR_OF["protocol"] - 1 <= MOST_FLOORS_BETWEEN


def test_no_floor_is_more_than_imports_need() -> None:
    """Each floor has a room that imports something from the floor below: else both could be one."""
    needed = {
        FLOOR_OF[room_of(importer)]
        for importer, module, _ in own_imports()
        if FLOOR_OF[room_of(importer)] == FLOOR_OF[room_of(module)] + 1
    }
    assert needed == set(range(1, len(FLOORS)))


def test_the_document_shows_the_rooms() -> None:
    assert marked(DESIGN, MARK) == drawing(), "the rooms in docs/design.md are old: run `python -m tests.rooms`"


# -- what is kept out


def test_the_protocol_knows_no_io_no_clock_and_no_numbers() -> None:
    outside = {"asyncio", "numpy", "socket", "selectors", "ssl", "time", "datetime", "random", "threading", "torch"}
    assert not imports_in("protocol", outside | {"os"})


def test_a_codec_never_sees_a_socket_and_transport_never_a_number() -> None:
    assert not imports_in("compression", {"socket", "ssl"})
    assert not imports_in("compression.codecs", {"socket", "asyncio", "ssl"})
    assert not imports_in("transport", {"numpy", "torch"})


def test_the_simulator_has_no_time_but_its_own() -> None:
    outside = {"asyncio", "socket", "threading", "time", "datetime"}
    real = {"simulator.__main__", "simulator.programs.processes"}  # one measures its speed; one simulates nothing
    programs = {"simulator.programs." + name for name in ("engine", "runner", "world")}  # on loops with virtual time
    found = [found for found in imports() if found.importer.startswith("simulator.") and top(found) in outside]
    strangers = {(entry.importer, entry.module) for entry in found if entry.importer not in real}
    assert strangers == {(name, "asyncio") for name in programs}


def test_torch_stays_where_it_belongs() -> None:
    strangers = [
        found for found in imports() if top(found) == "torch" and found.importer.partition(".")[0] not in KNOW_TORCH
    ]
    assert not strangers, "\n".join(map(str, strangers))


def test_observe_imports_torch_only_when_asked() -> None:
    eager = [found for found in imports_in("observe", {"torch"}) if at_the_top(found)]
    assert not eager, "\n".join(map(str, eager))


def at_the_top(found: Import) -> bool:
    body = tree_of(found.importer).body
    return any(isinstance(node, ast.Import | ast.ImportFrom) and node.lineno == found.line for node in body)


def imports_in(room: str, names: set[str]) -> list[Import]:
    return [found for found in imports() if room_of(found.importer) == room and top(found) in names]


def top(found: Import) -> str:
    return found.module.partition(".")[0]


# -- names and sizes


def test_no_module_has_a_name_that_says_nothing() -> None:
    parts = {part for module in modules() for part in module.split(".")}
    assert not parts & FORBIDDEN_NAMES


def test_no_class_name_stands_for_two_things() -> None:
    classes = [
        node.name for module in modules() for node in ast.walk(tree_of(module)) if isinstance(node, ast.ClassDef)
    ]
    assert not [name for name, count in Counter(classes).items() if count > 1]


def test_no_module_is_too_long_to_read() -> None:
    assert not {module: lines for module in modules() if (lines := lines_of(module)) > MOST_LINES}


def test_files_stay_few() -> None:
    count = len(modules())
    assert count <= MOST_FILES


def test_only_public_faces_stand_at_the_root() -> None:
    assert len(list(SOURCE.glob("*.py"))) <= MOST_AT_THE_ROOT


def test_every_package_says_what_it_is() -> None:
    packages = [module for module, path in modules().items() if path.name == "__init__.py"]
    assert not [package for package in packages if not ast.get_docstring(tree_of(package))]


def test_docstrings_start_with_their_noun() -> None:
    docstrings = {module: ast.get_docstring(tree_of(module)) or "" for module in modules()}
    asking = {module: text.splitlines()[0] for module, text in docstrings.items() if text.split(" ")[0] in QUESTIONS}
    assert not asking, "\n".join(f"{module}: {line}" for module, line in asking.items())


def test_texts_name_only_files_that_are_there() -> None:
    files = [path for room in ("src", "tests", "bench") for path in (TESTS.parent / room).rglob("*.py")]
    names = {path.name for path in files}
    missing = [
        f"{path.relative_to(TESTS.parent)}: {name}"
        for path in files
        for name in re.findall(r"`(?:[\w/]+/)?(\w+\.py)`", path.read_text())
        if name not in names
    ]
    assert not missing, "\n".join(missing)


# -- tests mirror the source

CROSS_CUTTING = {"bench", "faults", "fuzz", "integrations", "system"}
"""Directories of tests that belong to no room."""

ABOUT_THE_WHOLE = {"architecture", "docs", "no_pickle", "types", "ways", "wire_doc", "without_torch"}
"""Tests at the root that belong to no module."""

MIRRORS = {"torch_backend": "torch"}
"""Directories of tests that cannot have the name of their room: `torch` would hide torch itself."""

SMALL_LINES = 60

TESTED_ELSEWHERE = {
    "__init__": "test_architecture.py: names alone, and which imports they cost",
    "transport.send_half": "transport/test_lane.py: one contract for both halves of a lane",
    "collectives.running_collective": "collectives/test_dispatcher.py: the base of what is dispatched there",
    "collectives.deadlines": "collectives/test_dispatcher.py: seen where collectives wait",
    "collectives.news": "collectives/test_dispatcher.py: told and heard by the dispatcher",
    "collectives.peer_loss": "collectives/test_dispatcher.py: seen where collectives end; faults of all kinds by seed",
    "collectives.call_kinds": "test_ring_into.py: results land where the caller says",
    "collectives.single_segment": "test_ring_failing_once.py: an operation that must behave as the general one does",
    "compression.codecs.lz4": "compression/codecs/test_base_contract.py: promises no more than every codec does",
    "experiment.report.contents": "experiment/report/test_writing.py: read on the page",
    "experiment.report.drawing": "experiment/report/test_writing.py: seen in the plots of the page",
    "experiment.report.quantities": "experiment/report/test_writing.py: read on the page",
    "experiment.report.plots": "experiment/report/test_writing.py: seen on the page",
    "p2p.receiver": "p2p/test_endpoint.py: an endpoint is both ends of its transfers",
    "p2p.sender": "p2p/test_endpoint.py: an endpoint is both ends of its transfers",
    "p2p.transfer": "p2p/test_endpoint.py: an endpoint is both ends of its transfers",
    "protocol.instruction": "protocol/test_ring.py: values that the machines answer with",
    "runtime.caller_identity": "runtime/test_call_queue.py: who calls decides about the order",
    "runtime.connections": "bootstrap/test_handshake.py: opened by the handshake",
    "runtime.engine": "test_ring.py: put together by every ring",
    "simulator.__main__": "simulator/test_ring_life.py: the command over the lives",
    "simulator.calls": "simulator/test_ring_life.py: a part of a life",
    "simulator.host": "simulator/test_ring_life.py: a part of a life",
    "simulator.lane": "simulator/test_network.py: the lanes of the network",
    "simulator.rank": "simulator/test_ring_life.py: a part of a life",
    "simulator.scenario": "simulator/test_ring_life.py: a part of a life",
    "simulator.programs.*": "simulator/test_programs.py: one machine, and every part is needed for one program",
    "tensors.arithmetic": "test_ring.py: every operation and dtype against numpy",
    "tensors.bucket": "tensors/test_packing.py: packed into",
    "tensors.leaves": "tensors/test_packing.py: unpacked into",
    "tensors.memory_claims": "runtime/test_call_queue.py: the memory of open calls",
    "training.config": "experiment/test_config.py: a part of what an experiment file may say",
    "training.progress": "experiment/test_node_messages.py: values that are told",
    "transport.wire": "transport/test_lane_on_wires.py: a seam; every wire under every lane",
}
"""Modules without a test file of their name: where they are tested instead, and why."""


def test_tests_mirror_the_source() -> None:
    lost = [path.relative_to(TESTS).as_posix() for path in mirrored() if not subjects_of(path)]
    assert not lost, f"no module has the name that these begin with: {lost}"


def test_every_module_is_tested_by_a_file_of_its_name_or_it_is_said_where() -> None:
    tested = {module for path in mirrored() for module in subjects_of(path)}
    untested = {module for module in modules() if lines_of(module) >= SMALL_LINES} - tested
    assert not {module for module in untested if not listed(module)}
    named = {module for module in untested if module in TESTED_ELSEWHERE}
    assert named == {module for module in TESTED_ELSEWHERE if not module.endswith(".*")}, "listed without need"
    files = {reason.partition(":")[0] for reason in TESTED_ELSEWHERE.values()}
    assert not {name for name in files if not (TESTS / name).is_file()}


def listed(module: str) -> bool:
    return module in TESTED_ELSEWHERE or f"{module.rpartition('.')[0]}.*" in TESTED_ELSEWHERE


def mirrored() -> list[Path]:
    """Test files that are about a room or a module."""
    paths = [path for path in TESTS.rglob("test_*.py") if path.relative_to(TESTS).parts[0] not in CROSS_CUTTING]
    return [path for path in paths if path.parent != TESTS or path.stem.removeprefix("test_") not in ABOUT_THE_WHOLE]


def subjects_of(path: Path) -> set[str]:
    """The module or sub-package whose name the test file begins with: the longest that fits. Empty if none does."""
    first, *rest = path.relative_to(TESTS).with_suffix("").parts
    *rooms, name = [MIRRORS.get(first, first), *rest]
    begun = name.removeprefix("test_") + "_"
    inside = {module for module in modules() if module.split(".")[:-1] == rooms}
    here = {module.rpartition(".")[2].strip("_"): module for module in inside} | {"init": ".".join(rooms) or "__init__"}
    fitting = [stem for stem in here if begun.startswith(stem + "_")]
    return {here[max(fitting, key=len)]} if fitting else set()


# -- the door is light


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
