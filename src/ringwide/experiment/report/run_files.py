"""Reader of run directories: results.json as plain values.

A missing value is None. A wrong one is an error with its file and key.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ringwide.errors import ConfigError

FORMAT = 1
BITS_OF_A_FIGURE = 1000  # larger integers cannot become floats
RESULTS = "results.json"
NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf, "infinity": math.inf, "-infinity": -math.inf}
Figures = Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class NodeResult:
    """Figures of one rank. `ended` is false if it left no result; the figures are then sums over its steps."""

    rank: int
    figures: Figures
    ended: bool = True


@dataclass(frozen=True, slots=True)
class Run:
    """Results of one run."""

    directory: Path
    name: str
    label: str  # the variant of its sweep; empty without one
    status: str
    reason: str
    started: str
    seconds: float | None
    config: Mapping[str, Any]
    versions: Mapping[str, Any]
    machine: Mapping[str, Any]
    plan: Mapping[str, Any]
    nodes: tuple[NodeResult, ...]
    totals: Figures

    @property
    def missing(self) -> tuple[int, ...]:
        """Ranks that left no result."""
        ended = {node.rank for node in self.nodes if node.ended}
        return tuple(rank for rank in range(self.size) if rank not in ended)

    @property
    def size(self) -> int:
        nodes = self.config.get("nodes")
        return nodes if isinstance(nodes, int) and 0 < nodes <= 10_000 else len(self.nodes)

    @property
    def batch_size(self) -> int:
        size = self.setting("training.batch_size")
        return size if isinstance(size, int) and size > 0 else 1

    def setting(self, key: str) -> Any:
        """Value of a dotted key; None if an older version did not know it."""
        value: Any = self.config
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return value


NamedRuns = Sequence[tuple[str, Run]]


@dataclass(frozen=True, slots=True)
class Sweep:
    """Results of a sweep, with those of its runs."""

    directory: Path
    name: str
    status: str
    reason: str
    started: str
    seconds: float | None
    keys: Mapping[str, Any]
    runs: tuple[Run, ...]
    planned: int


def read(directory: Path) -> Run | Sweep:
    document = _read_document(directory)
    return _sweep(document, directory) if "sweep" in document.data else _run(document, directory)


def with_totals(run: Run, nodes: tuple[NodeResult, ...]) -> Run:
    """Run with rows for ranks that left no result, which its own totals do not count."""
    sums = {key: _sum(nodes, key) for key in ("batches", "samples", "batches_per_second")}
    return replace(run, nodes=nodes, totals={**run.totals, **sums})


def number(value: object) -> float | None:
    """Number of a JSON value. JSON has no NaN, so writers use a bare word, a string or null for it."""
    if isinstance(value, str):
        return NOT_FINITE.get(value.lower())
    if isinstance(value, int):
        return None if isinstance(value, bool) or value.bit_length() > BITS_OF_A_FIGURE else value
    return value if isinstance(value, float) else None


@dataclass(frozen=True, slots=True)
class _Document:
    """One results.json, read with the type expected of each value. A wrong type is an error with file and key."""

    path: Path
    data: Mapping[str, Any]

    def text(self, key: str) -> str:
        return str(self._get(key, str, "a text", ""))

    def mapping(self, key: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self._get(key, dict, "an object", {})
        return found

    def items(self, key: str) -> list[Any]:
        found: list[Any] = self._get(key, list, "a list", [])
        return found

    def _get(self, key: str, kind: type, called: str, default: Any) -> Any:
        value = self.data.get(key)
        if value is None:
            return default
        if not isinstance(value, kind):
            raise ConfigError(f"{self.path}: {key}: {value!r:.60}: should be {called}")
        return value


def _read_document(directory: Path) -> _Document:
    path = directory / RESULTS
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"{path}: the results cannot be read: {error.strerror}; name the directory of a run, as in runs/NAME-TIME"
        ) from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not JSON: {error}") from error
    if not isinstance(data, dict) or "format" not in data:
        raise ConfigError(f"{path}: not the results of a run: there is no 'format'")
    if data["format"] != FORMAT:
        raise ConfigError(f"{path}: format {data['format']!r:.60}: this version of ringwide reads format {FORMAT}")
    return _Document(path, data)


def _run(document: _Document, directory: Path) -> Run:
    return Run(
        directory=directory,
        name=document.text("name"),
        label=document.text("label"),
        status=document.text("status"),
        reason=document.text("reason"),
        started=document.text("started"),
        seconds=number(document.data.get("seconds")),
        config=document.mapping("config"),
        versions=document.mapping("versions"),
        machine=document.mapping("machine"),
        plan=document.mapping("plan"),
        nodes=tuple(_node(item, document.path) for item in document.items("nodes")),
        totals=_figures(document.mapping("totals")),
    )


def _sweep(document: _Document, directory: Path) -> Sweep:
    names = document.items("runs")
    for name in names:
        if not isinstance(name, str) or Path(name).name != name:
            raise ConfigError(
                f"{document.path}: runs: {name!r:.60}: should be the name of a directory next to this file"
            )
    found = [read(directory / name) for name in names if (directory / name / RESULTS).exists()]
    return Sweep(
        directory=directory,
        name=document.text("name"),
        status=document.text("status"),
        reason=document.text("reason"),
        started=document.text("started"),
        seconds=number(document.data.get("seconds")),
        keys=document.mapping("sweep"),
        runs=tuple(run for run in found if isinstance(run, Run)),
        planned=math.prod(len(values) for values in document.mapping("sweep").values() if isinstance(values, list)),
    )


def _node(item: Any, path: Path) -> NodeResult:
    rank = item.get("rank") if isinstance(item, dict) else None
    if not isinstance(rank, int):
        raise ConfigError(f"{path}: nodes: {item!r:.60}: should be an object with a rank")
    return NodeResult(rank, _figures(item))


def _figures(items: Mapping[str, Any]) -> Figures:
    return {key: number(value) for key, value in items.items()}


def _sum(nodes: tuple[NodeResult, ...], key: str) -> float | None:
    known = [value for node in nodes if (value := node.figures.get(key)) is not None]
    return sum(known) if known else None
