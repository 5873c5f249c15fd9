"""Long links: `python -m bench delay [--round-trip 50,100] [--lanes 1,2,4,8,16] [--size 64MiB] [--window 4MiB]`."""

import argparse
import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench.codecs import parse_rate
from bench.delay.launch import Link, play, why_no_gloo
from bench.delay.report import COLUMNS, fields, judge, markdown, summarise
from bench.machine import describe_machine
from bench.units import check_rounds, parse_counts, parse_size

ROOT = Path(__file__).parents[2]
RESULT, PLOT = ROOT / "bench" / "results" / "delay.json", ROOT / "docs" / "delay.svg"
WIDTHS = (10, 8, 6, 9, 15, 9, 8, 14, 15, 10)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--round-trip", default="50,100", help="milliseconds, with commas (default: %(default)s)")
    parser.add_argument("--lanes", default="1,2,4,8,16", help="connections to a neighbour (default: %(default)s)")
    parser.add_argument("--size", default="64MiB", help="bytes of the fp32 tensor (default: %(default)s)")
    parser.add_argument("--ranks", type=int, default=2, help="how many (default: %(default)s)")
    parser.add_argument(
        "--window", default="4MiB", help="what a connection has in flight at most, with commas (default: %(default)s)"
    )
    parser.add_argument("--rate", help="of a line that a rank's connections share in each direction, such as 1Gbit")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each number of lanes (default: %(default)s)")
    parser.add_argument("--no-gloo", dest="gloo", action="store_false", help="ringwide alone")
    parser.add_argument("--save", action="store_true", help="write bench/results/delay.json and docs/delay.svg")


def run(options: argparse.Namespace) -> None:
    if options.save and find_spec("matplotlib") is None:
        raise SystemExit("bench: --save draws a picture and needs matplotlib: pip install --editable '.[bench]'")
    lanes, nbytes = sorted(set(parse_counts(options.lanes))), parse_size(options.size)
    links = links_of(options)
    check_rounds(options.rounds)
    if options.ranks < 2:
        raise SystemExit(f"bench: --ranks {options.ranks} has no link that could be long; write 2 or more")
    report: dict[str, Any] = {"machine": describe_machine(), "ranks": options.ranks, "bytes": nbytes, "cells": []}
    print(f"{report['machine']}\n{options.ranks} ranks, {nbytes:,} bytes of float32\n\n{_line(COLUMNS)}", flush=True)
    why_not = why_no_gloo(options.ranks)
    if options.gloo and why_not:
        print(why_not, file=sys.stderr)
    for link in links:
        print(f"{link}, {options.rounds} rounds", file=sys.stderr, flush=True)
        turns = play(
            link,
            ranks=options.ranks,
            lanes=lanes,
            nbytes=nbytes,
            rounds=options.rounds,
            gloo=options.gloo and not why_not,
        )
        cells = summarise(link, turns, nbytes=nbytes, ranks=options.ranks)
        report["cells"] += cells
        print("\n".join(_line(fields(cell)) for cell in cells), flush=True)
    report["bars"] = judge(report["cells"])
    for bar in report["bars"]:
        print(f"{'met ' if bar['met'] else 'MISSED'} {bar['bar']}: {bar['found']}")
    if options.save:
        save(report)


def links_of(options: argparse.Namespace) -> list[Link]:
    """First one without delay: what ranks and proxy can do at all, on this machine. The rate is in bits."""
    bits = parse_rate(options.rate) if options.rate else None
    windows = [parse_size(window) for window in options.window.split(",")]
    delays = [milliseconds / 1e3 for milliseconds in parse_counts(options.round_trip)]
    links = [(0.0, windows[0]), *((delay, window) for window in windows for delay in delays)]
    return [Link(delay, window, None if bits is None else bits / 8) for delay, window in links]


def save(report: dict[str, Any]) -> None:
    from bench.delay.plot import plot  # needs matplotlib, which measuring does not

    RESULT.write_text(json.dumps(report, indent=1) + "\n")
    plot(report, PLOT)
    print(f"\n{markdown(report)}")


def _line(texts: Any) -> str:
    return " ".join(f"{text:>{width}}" for text, width in zip(texts, WIDTHS, strict=True))
