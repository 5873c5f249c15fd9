"""The rooms of src/ringwide by floor, their imports, and the picture of them in docs/design.md.

python -m tests.rooms    draws the picture in docs/design.md anew
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.marked import DESIGN, renew

import ringwide

SOURCE = Path(ringwide.__file__).parent
MARK = "rooms"

FLOORS: tuple[dict[str, str], ...] = (
    {
        "errors": "the errors, and whose fault each is",
        "compression.codecs": "numbers <-> bytes, a file for each kind of codec; never sees a socket",
    },
    {
        "protocol": "THE RULES: frames, machines, handshake, matching; no I/O, no clock, no numpy",
        "tensors": "the user's tensors <-> flat buckets: leaves, packing, arithmetic, buffer pool",
    },
    {
        "transport": "bytes <-> peers: lanes and links, plain, encrypted or in shared memory; never sees a number",
        "compression": "codec of each bucket: policy, autotune, jobs in threads, error feedback",
    },
    {
        "bootstrap": "forming the ring: peers, launcher environment, rendezvous, handshake, protection",
        "collectives": "numbers round the ring: plan, operation, dispatcher, deadlines, loss of a peer",
        "health": "heartbeats while a collective waits; stragglers",
    },
    {
        "config": "settings: YAML, --set, environment, validation",
        "observe": "figures pulled from below, and the check of a ring against known sums",
        "p2p": "messages between two ranks, all-to-all",
    },
    {"runtime": "engine of a ring: call queue, connections, signals, background loop"},
    {
        "ring": "Ring and join: what a user awaits",
        "training": "loop, learner, models, data, checkpoints; the ring is an argument",
        "simulator": "whole rings on a virtual clock, by seed",
        "experiment.report": "tables, plots and one page, from the files of a run",
    },
    {
        "blocking": "the ring for programs without asyncio",
        "torch": "backend of torch.distributed, hook for DDP",
        "experiment": "YAML in, nodes as processes, results out",
        "simulator.programs": "random programs at the public face, by seed",
    },
    {
        "__init__": "the public names, loaded when first used",
        "node": "python -m ringwide.node: one node",
        "experiment.ray": "the nodes of an experiment on a Ray cluster",
        "simulator.__main__": "python -m ringwide.simulator",
    },
    {"__main__": "python -m ringwide: the commands"},
)
"""Lowest first. Each room, or part of a room, imports from lower floors only, and has its job beside it."""

FLOOR_OF = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}


@dataclass(frozen=True, slots=True)
class Import:
    """One import: from which module, in which line, of what."""

    importer: str
    line: int
    module: str

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.module}"


@cache
def modules() -> dict[str, Path]:
    """Each module of the package by its name below `ringwide.`; a package stands for its __init__."""
    return {_name(path): path for path in sorted(SOURCE.rglob("*.py"))}


def _name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)


@cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(modules()[module].read_text())


def room_of(module: str) -> str:
    """The entry of FLOORS that fits best, or the first part of the name if there is none."""
    parts = module.split(".")
    candidates = [".".join(parts[:count]) for count in range(len(parts), 0, -1)]
    return next((room for room in candidates if room in FLOOR_OF), parts[0])


@cache
def imports() -> list[Import]:
    return [found for module in modules() for found in imports_of(module)]


def imports_of(module: str) -> Iterator[Import]:
    """Also those inside functions, and those by a name in quotes."""
    for node in ast.walk(tree_of(module)):
        match node:
            case ast.Import(names=names):
                yield from (Import(module, node.lineno, alias.name) for alias in names)
            case ast.ImportFrom(module=None) | ast.ImportFrom(level=1 | 2 | 3):
                raise AssertionError(f"{module}:{node.lineno}: a relative import")
            case ast.ImportFrom(module=str(home), names=names):
                yield from {Import(module, node.lineno, _imported(home, alias.name)) for alias in names}
            case ast.Call(
                func=ast.Name(id="import_module") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name))],
            ):
                yield Import(module, node.lineno, name)


def _imported(home: str, name: str) -> str:
    if f"{home}.{name}".removeprefix("ringwide.") in modules():
        return f"{home}.{name}"
    return "ringwide.__init__" if home == "ringwide" else home


def own_imports() -> Iterator[tuple[str, str, Import]]:
    """Importing module, imported module, and where."""
    for found in imports():
        home, _, module = found.module.partition(".")
        if home == "ringwide":
            yield found.importer, module or "__init__", found


def drawing() -> str:
    """The rooms, highest floor first, as they stand in docs/design.md."""
    lines = ["```text", "src/ringwide/"]
    for number, rooms in reversed(list(enumerate(FLOORS))):
        labels = [f"{number:2}", *["  "] * (len(rooms) - 1)]
        lines += [f"{label}  {_path(room):<22} {job}" for label, (room, job) in zip(labels, rooms.items(), strict=True)]
    return "\n".join([*lines, "```"])


def _path(room: str) -> str:
    path = room.replace(".", "/")
    return f"{path}/" if (SOURCE / path).is_dir() else f"{path}.py"


if __name__ == "__main__":
    renew(DESIGN, MARK, drawing())
