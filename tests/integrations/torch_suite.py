"""Torch's own test suite of torch.distributed with ringwide, beside gloo: one table.

python -m tests.integrations.torch_suite [--ranks 2 3 4] [--tests NAME ...] [--logs DIRECTORY]

Ends with an error if gloo passes a test that ringwide does not pass and that is not among the known exceptions.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEST_SECONDS = 90
RUN_SECONDS = 2400
EXCEPTIONS: dict[str, str] = {}
"""Tests that gloo passes and ringwide does not, and why."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a test went: passed, skipped or failed, and the last line of its error."""

    outcome: str
    error: str = ""


Outcomes = dict[str, Outcome]


def run(backend: str, ranks: int, tests: Sequence[str] = (), log: Path | None = None) -> Outcomes:
    """Outcome of each test, by name. No tests: all."""
    pythonpath = os.pathsep.join(filter(None, [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    with nullcontext() if log is None else log.open("w") as errors:
        done = subprocess.run(
            [sys.executable, "-m", "tests.integrations.torch_suite_runner", backend, str(ranks), str(TEST_SECONDS)],
            input="\n".join(tests),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if errors is None else errors,
            text=True,
            timeout=RUN_SECONDS,
            env={**os.environ, "PYTHONPATH": pythonpath, "OMP_NUM_THREADS": "1"},
            check=True,
        )
    lines = map(json.loads, done.stdout.splitlines())
    return {line["test"]: Outcome(line["outcome"], line["error"]) for line in lines}


def passed(outcomes: Outcomes) -> set[str]:
    return {name for name, outcome in outcomes.items() if outcome.outcome == "passed"}


def shortfall(gloo: Outcomes, ours: Outcomes) -> Outcomes:
    """Tests that gloo passes and ringwide does not, with how they went."""
    return {name: ours.get(name, Outcome("missing")) for name in sorted(passed(gloo) - passed(ours))}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--tests", nargs="+", default=[], metavar="NAME", help="these only")
    parser.add_argument("--logs", type=Path, help="directory for what the tests print")
    given = parser.parse_args()
    if given.logs:
        given.logs.mkdir(parents=True, exist_ok=True)
    short: dict[int, Outcomes] = {}
    print(f"{'ranks':>5}  {'gloo':>5}  {'ringwide':>8}  {'gloo only':>9}", flush=True)
    for ranks in given.ranks:
        gloo, ours = (
            run(backend, ranks, given.tests, given.logs and given.logs / f"{backend}-{ranks}.log")
            for backend in ("gloo", "ringwide")
        )
        short[ranks] = shortfall(gloo, ours)
        print(f"{ranks:>5}  {len(passed(gloo)):>5}  {len(passed(ours)):>8}  {len(short[ranks]):>9}", flush=True)
    for ranks, tests in short.items():
        for name, outcome in tests.items():
            print(f"{ranks} ranks: {name} {outcome.outcome}: {EXCEPTIONS.get(name) or outcome.error}")
    return int(any(name not in EXCEPTIONS for tests in short.values() for name in tests))


if __name__ == "__main__":
    sys.exit(main())
