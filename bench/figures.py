"""All saved figures in one document: `python -m bench figures` writes docs/figures.md from bench/results/*.json."""

import argparse
import json
from pathlib import Path
from typing import Any

from bench import profile
from bench.costs import tables as costs
from bench.delay import report as delay
from bench.speed import tables as speed

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "figures.md"
INTRODUCTION = """# Figures

Every table here is printed by the command above it and written down by `python -m bench figures`; a test compares
them. What they mean is in [performance.md](performance.md). Times are medians; what stands in brackets are quartiles; a
ratio is the median of the ratios of neighbouring turns, which met the same noise."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """There are none."""


def run(_: argparse.Namespace) -> None:
    DOCUMENT.write_text(document())
    print(f"{DOCUMENT.relative_to(ROOT)} is written")


def document() -> str:
    parts = [INTRODUCTION]
    for heading, result, write in SECTIONS:
        path = ROOT / "bench" / "results" / f"{result}.json"
        if path.exists():
            report = json.loads(path.read_text())
            command = f"python -m bench {result}{_options(report)} --save"
            parts.append(f"## {heading}\n\n`{command}`. {report['machine']}.\n\n{write(report)}")
    return "\n\n".join(parts) + "\n"


def _options(report: dict[str, Any]) -> str:
    """Those that a report tells of itself."""
    rounds = report.get("rounds", report["cells"][0].get("rounds"))
    told = {"rounds": rounds, "seconds": report.get("seconds")}
    return "".join(f" --{name} {value}" for name, value in told.items() if value is not None)


def _speed(report: dict[str, Any]) -> str:
    titled = (
        ("### What was asked for, and what was measured", speed.bars(report)),
        ("### Times, and how many times as fast as gloo", speed.markdown(report)),
        ("### hivemind", speed.slow(report)),
        ("### Beside the limit", speed.fractions(report)),
        ("### What the machine did in the same rounds", speed.limits(report)),
    )
    pictures = "\n".join(f"![{path.stem}]({path.name})" for path in sorted((ROOT / "docs").glob("speed*.svg")))
    settings = "\n".join(f"- {name}: {setting}" for name, setting in report["settings"].items())
    how = f"{report['rounds']} rounds; a turn is {report['turn']}.\n\n{settings}"
    return "\n\n".join([how, pictures, *(f"{title}\n\n{text}" for title, text in titled if text)])


def _delay(report: dict[str, Any]) -> str:
    return f"![time over lanes](delay.svg)\n\n{delay.markdown(report)}"


def _costs(report: dict[str, Any]) -> str:
    return f"![cost curves](costs.svg)\n\n{costs.markdown(report)}"


SECTIONS = (
    ("All-reduce beside everyone else and beside the limit", "speed", _speed),
    ("Long links", "delay", _delay),
    ("What it costs", "costs", _costs),
    ("Where the time goes", "profile", profile.markdown),
)
