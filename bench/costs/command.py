"""The command: `python -m bench costs [--only time,processor,memory,allocations,join] [--save]`."""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench.costs import summary
from bench.costs.summary import Cell
from bench.costs.tables import SECTIONS, cells_of, table, title
from bench.fleet import ask_workers, rings_of_addresses
from bench.machine import describe_machine
from bench.units import check_rounds, parse_counts, parse_size, size_name, span

ROOT = Path(__file__).parents[2]
RESULT, PLOT = ROOT / "bench" / "results" / "costs.json", ROOT / "docs" / "costs.svg"
PROCESSOR_RANKS, ALLOCATION_RANKS, MOST_MEMORY_RANKS = (2, 4, 8), (2, 4), 4
PROCESSOR_SIZES = "16MiB,64MiB"
MEMORY_CALLS, LARGE_MEMORY_CALLS, LARGE_BYTES = 10, 4, 2**27
MOST_SECONDS = 600  # for the processes of one step


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", metavar="CURVES", help=f"of these only, with commas: {','.join(SECTIONS)}")
    parser.add_argument("--ranks", default="2,3,4,6,8,12,16", help="numbers of ranks (default: %(default)s)")
    parser.add_argument("--sizes", default="4KiB,1MiB,16MiB", help="of time and allocations (default: %(default)s)")
    parser.add_argument(
        "--memory-sizes", default="1MiB,4MiB,16MiB,64MiB,256MiB", help="of the memory curve (default: %(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=7, help="turns of each, and times to join (default: %(default)s)")
    parser.add_argument("--save", action="store_true", help="write bench/results/costs.json and docs/costs.svg")


def run(options: argparse.Namespace) -> None:
    if options.save and find_spec("matplotlib") is None:
        raise SystemExit("bench: --save draws a picture and needs matplotlib: pip install --editable '.[bench]'")
    wanted = wanted_of(options.only)
    check_rounds(options.rounds)
    report: dict[str, Any] = {"machine": describe_machine(), "rounds": options.rounds, "cells": []}
    print(report["machine"], flush=True)
    began = time.monotonic()
    for step in (over_ranks, join_without_torch, memory, allocations):
        step(report, wanted, options)
        print(f"  {span(time.monotonic() - began)}: {step.__name__} is done", file=sys.stderr, flush=True)
    for name in wanted:
        print(f"\n{title(name)}\n\n{table(report, name)}", flush=True)
    if options.save:
        save(report)


def wanted_of(only: str | None) -> list[str]:
    wanted = only.split(",") if only else list(SECTIONS)
    if unknown := set(wanted) - set(SECTIONS):
        raise SystemExit(f"bench: --only {','.join(sorted(unknown))}: there are {', '.join(SECTIONS)}")
    return wanted


def over_ranks(report: dict[str, Any], wanted: Sequence[str], options: argparse.Namespace) -> None:
    """Time, processor time and joining with torch, all in the same processes: they take seconds to start."""
    if not {"time", "processor", "join"}.intersection(wanted):
        return
    for ranks in parse_counts(options.ranks):
        sizes = sizes_for(ranks, options.sizes, wanted)
        told = ask("pace", ranks, {"sizes": sizes, "rounds": options.rounds}, joins=1 + options.rounds)
        cells = [rank["cells"] for rank in told]
        add(report, wanted, "time", _of_sizes(summary.times(cells), options.sizes))
        if ranks in PROCESSOR_RANKS:
            add(report, wanted, "processor", _of_sizes(summary.processor(cells), PROCESSOR_SIZES))
        add(report, wanted, "join", summary.joined([rank["joined"] for rank in told], torch=True))
        print(f"  {ranks} ranks: {', '.join(map(size_name, sizes))}", file=sys.stderr, flush=True)


def sizes_for(ranks: int, asked: str, wanted: Sequence[str]) -> list[int]:
    sizes = {parse_size(size) for size in asked.split(",")} if "time" in wanted else set()
    if "processor" in wanted and ranks in PROCESSOR_RANKS:
        sizes |= {parse_size(size) for size in PROCESSOR_SIZES.split(",")}
    return sorted(sizes)


def _of_sizes(cells: Any, sizes: str) -> list[Cell]:
    wanted = {parse_size(size) for size in sizes.split(",")}
    return [cell for cell in cells if cell["bytes"] in wanted]


def join_without_torch(report: dict[str, Any], wanted: Sequence[str], options: argparse.Namespace) -> None:
    if "join" not in wanted:
        return
    for ranks in parse_counts(options.ranks):
        add(report, wanted, "join", summary.joined(ask("join", ranks, {}, joins=1 + options.rounds), torch=False))


def memory(report: dict[str, Any], wanted: Sequence[str], options: argparse.Namespace) -> None:
    """Fresh processes for each size: what one call has taken, the next one would use again."""
    if "memory" not in wanted:
        return
    asked = parse_counts(options.ranks)
    ranks = max((count for count in asked if count <= MOST_MEMORY_RANKS), default=min(asked))
    for nbytes in map(parse_size, options.memory_sizes.split(",")):
        for library in ("gloo", "ringwide"):
            calls = MEMORY_CALLS if nbytes < LARGE_BYTES else LARGE_MEMORY_CALLS
            told = ask("memory", ranks, {"bytes": nbytes, "library": library, "calls": calls})
            add(report, wanted, "memory", [summary.memory(told, library=library, nbytes=nbytes)])


def allocations(report: dict[str, Any], wanted: Sequence[str], options: argparse.Namespace) -> None:
    if "allocations" not in wanted:
        return
    sizes = [parse_size(size) for size in options.sizes.split(",")]
    for ranks in parse_counts(options.ranks):
        if ranks in ALLOCATION_RANKS:
            add(report, wanted, "allocations", summary.allocations(ask("allocations", ranks, {"sizes": sizes})))


def add(report: dict[str, Any], wanted: Sequence[str], name: str, cells: Any) -> None:
    if name in wanted:
        report["cells"] += [{"curve": name, **cell} for cell in cells]


def ask(worker: str, ranks: int, task: dict[str, Any], *, joins: int = 0) -> list[Any]:
    """All ranks' answers. They get a ring, and a store for gloo; and as many more of both as they shall join."""
    peers, store, *more = rings_of_addresses(2 + 2 * joins, ranks, None)
    task = {
        **task,
        "peers": peers,
        "store": store[0],
        "joins": more[:joins],
        "stores": [addresses[0] for addresses in more[joins:]],
    }
    tasks = [{**task, "rank": rank} for rank in range(ranks)]
    return ask_workers(f"bench.costs.{worker}_worker", tasks, timeout_seconds=MOST_SECONDS)


def save(report: dict[str, Any]) -> None:
    from bench.costs.plot import plot  # needs matplotlib, which measuring does not

    missing = [name for name in SECTIONS if not cells_of(report, name)]
    if missing:
        raise SystemExit(f"bench: --save wants all curves, without --only: {', '.join(missing)} are missing")
    RESULT.write_text(json.dumps(report, indent=1) + "\n")
    plot(report, PLOT)
