"""`python -m bench speed [--ranks 2,4,8] [--sizes 1KB,...,256MB] [--rounds 11] [--only gloo,ringwide] [--short]`."""

import argparse
import json
from datetime import date
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench.machine import describe_machine
from bench.speed.bars import judge
from bench.speed.contestants import Contestant, contestants, limit
from bench.speed.environments import ROOT
from bench.speed.leader import Measured, Plan, measure
from bench.speed.progress import Progress
from bench.speed.summary import cells_of, limits_of
from bench.speed.tables import shown
from bench.units import check_rounds, parse_counts, parse_size

RESULT = ROOT / "bench" / "results" / "speed.json"
PICTURES = ROOT / "docs"
RANKS, ROUNDS = "2,4,8", 11
SIZES = "1KB,4KB,16KB,64KB,256KB,1MB,4MB,16MB,64MB,256MB"
SHORT_SIZES, SHORT_ROUNDS = "4KB,64KB,1MB,16MB,64MB", 5
SHORT_SECONDS = 420  # and about 100 to make the environments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    names = ",".join(contestant.name for contestant in contestants({}))
    parser.add_argument("--ranks", default=RANKS, help="numbers of ranks, separated by commas (default: %(default)s)")
    parser.add_argument("--sizes", help=f"of the fp32 tensor, in powers of two (default: {SIZES})")
    parser.add_argument("--rounds", type=int, help=f"turns of each at each size (default: {ROUNDS})")
    parser.add_argument("--only", metavar="NAMES", help=f"of these contestants, separated by commas: {names}")
    parser.add_argument(
        "--short", action="store_true", help=f"{SHORT_SIZES} in up to {SHORT_ROUNDS} rounds, under ten minutes"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of ringwide, may be repeated"
    )
    parser.add_argument("--save", action="store_true", help="write bench/results/speed.json and docs/speed-*.svg")
    parser.add_argument("--into", type=Path, metavar="FILE", help="write the result there, and no pictures")


def run(options: argparse.Namespace) -> None:
    if options.save and find_spec("matplotlib") is None:
        raise SystemExit("bench: --save draws pictures and needs matplotlib: pip install --editable '.[bench]'")
    sizes = options.sizes or (SHORT_SIZES if options.short else SIZES)
    rounds = options.rounds if options.rounds is not None else SHORT_ROUNDS if options.short else ROUNDS
    if options.into is not None and not options.into.parent.is_dir():  # said now, not when all is measured
        raise SystemExit(f"bench: --into {options.into}: there is no directory {options.into.parent}")
    seconds = SHORT_SECONDS if options.short else None
    plan = Plan(
        parse_counts(options.ranks), [parse_size(size) for size in sizes.split(",")], check_rounds(rounds), seconds
    )
    chosen = choose(options.only, parse_settings(options.set))
    print(describe_machine(), flush=True)
    try:
        with Progress(plan.ranks, plan.rounds) as progress:
            report = make_report(plan, chosen, measure(plan, [*chosen, limit()], progress))
    except KeyboardInterrupt:
        raise SystemExit("bench: stopped; every process has ended, nothing was written") from None
    print(f"\n{shown(report)}")
    if options.into is not None:
        options.into.write_text(json.dumps(report, indent=1) + "\n")
    if options.save:
        save(report)


def choose(only: str | None, settings: dict[str, Any]) -> list[Contestant]:
    everyone = {contestant.name: contestant for contestant in contestants(settings)}
    names = only.split(",") if only else list(everyone)
    unknown = [name for name in names if name not in everyone]
    if unknown:
        raise SystemExit(f"bench: nobody is called {unknown[0]!r}; there are {', '.join(everyone)}")
    return [everyone[name] for name in everyone if name in names]


def parse_settings(texts: list[str]) -> dict[str, str]:
    for text in texts:
        if "=" not in text:
            raise SystemExit(f"bench: --set {text!r} sets nothing; write for example --set lanes=2")
    return dict(text.split("=", 1) for text in texts)


def make_report(plan: Plan, chosen: list[Contestant], measured: Measured) -> dict[str, Any]:
    cells = cells_of(measured)
    return {
        "what": "speed",
        "machine": ", ".join([describe_machine(), *_peers(measured.versions)]),
        "date": str(date.today()),
        "versions": measured.versions,
        "rounds": plan.rounds,
        "ranks": list(plan.ranks),
        "sizes": list(plan.sizes),
        "turn": "the median over its calls of the slowest rank's time",
        "settings": {contestant.name: contestant.how for contestant in (*chosen, limit())},
        "skipped": measured.skipped,
        "bars": judge(cells),
        "cells": cells,
        "limits": limits_of(measured),
    }


def _peers(versions: dict[str, str]) -> list[str]:
    """Those that the line of the machine does not name by itself."""
    return [f"{name} {number}" for name, number in sorted(versions.items()) if name not in ("ringwide", "torch")]


def save(report: dict[str, Any]) -> None:
    from bench.speed.plot import plot  # needs matplotlib, which measuring does not

    RESULT.write_text(json.dumps(report, indent=1) + "\n")
    for path in plot(report, PICTURES):
        print(f"drawn: {path.relative_to(ROOT)}")
