"""`python -m bench speed [--ranks 2,4,8] [--sizes 1KB,...,256MB] [--rounds 11] [--only gloo,ringwide] [--short]`."""

import argparse
import json
import signal
import sys
from datetime import date
from pathlib import Path
from types import FrameType
from typing import Any

from bench.machine import describe_machine
from bench.speed.contestants import Contestant, contestants, limit
from bench.speed.environments import ROOT
from bench.speed.leader import Measured, Plan, measure
from bench.speed.progress import Progress
from bench.speed.summary import cells_of, limits_of
from bench.speed.tables import markdown, shown
from bench.units import parse_counts, parse_size

RESULT = ROOT / "bench" / "results" / "speed.json"
RANKS, ROUNDS = "2,4,8", 11
SIZES = "1KB,4KB,16KB,64KB,256KB,1MB,4MB,16MB,64MB,256MB"
SHORT_SIZES, SHORT_ROUNDS = "4KB,64KB,1MB,16MB,64MB", 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    names = ",".join(contestant.name for contestant in contestants({}))
    parser.add_argument("--ranks", default=RANKS, help="numbers of ranks, separated by commas (default: %(default)s)")
    parser.add_argument("--sizes", help=f"of the fp32 tensor, in powers of two (default: {SIZES})")
    parser.add_argument("--rounds", type=int, help=f"turns of each at each size (default: {ROUNDS})")
    parser.add_argument("--only", metavar="NAMES", help=f"of these contestants, separated by commas: {names}")
    parser.add_argument(
        "--short", action="store_true", help=f"{SHORT_SIZES} in {SHORT_ROUNDS} rounds, for a first look"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of ringwide, may be repeated"
    )
    parser.add_argument("--save", action="store_true", help="write bench/results/speed.json and docs/speed-*.svg")
    parser.add_argument("--into", type=Path, metavar="FILE", help="write the result there, and no pictures")


def run(options: argparse.Namespace) -> None:
    signal.signal(signal.SIGTERM, _stop)  # so that every process is ended
    sizes = options.sizes or (SHORT_SIZES if options.short else SIZES)
    rounds = options.rounds or (SHORT_ROUNDS if options.short else ROUNDS)
    plan = Plan(parse_counts(options.ranks), [parse_size(size) for size in sizes.split(",")], rounds)
    chosen = choose(options.only, dict(setting.split("=", 1) for setting in options.set))
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


def make_report(plan: Plan, chosen: list[Contestant], measured: Measured) -> dict[str, Any]:
    return {
        "what": "speed",
        "machine": describe_machine(),
        "date": str(date.today()),
        "versions": measured.versions,
        "rounds": plan.rounds,
        "ranks": list(plan.ranks),
        "sizes": list(plan.sizes),
        "turn": "the median over its calls of the slowest rank's time",
        "settings": {contestant.name: contestant.how for contestant in (*chosen, limit())},
        "skipped": measured.skipped,
        "cells": cells_of(measured),
        "limits": limits_of(measured),
    }


def save(report: dict[str, Any]) -> None:
    RESULT.write_text(json.dumps(report, indent=1) + "\n")
    print(f"\n{markdown(report)}")


def _stop(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)
