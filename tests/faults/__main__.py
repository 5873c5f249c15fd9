"""`python -m tests.faults [ROW ...] [--runs N] [--seed S]`: bring faults about, and print what came of them.

Exit code 1 if a promise was broken or a bar was not met.
"""

import argparse
import sys

from tests.faults.playing import play_rows
from tests.faults.programme import ROWS
from tests.faults.simulated import SEEDS, simulated
from tests.faults.table import table


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"by default all: {', '.join(ROWS)}, and the simulator")
    parser.add_argument("--runs", type=int, metavar="N", help="how many of each (default: as the row says)")
    parser.add_argument("--jobs", type=int, metavar="N", help="how many at a time (default: as the row says)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of all chance (default: 0)")
    options = parser.parse_args(words)
    if unknown := [name for name in options.rows if name not in ROWS]:
        parser.error(f"{', '.join(unknown)}: the rows are {', '.join(ROWS)}")
    rows = [ROWS[name] for name in options.rows or ROWS]
    tallies = play_rows(rows, runs=options.runs, jobs=options.jobs, seed=options.seed)
    if not options.rows:
        tallies.append(simulated(options.runs or SEEDS, first=options.seed))
    print(table(tallies))
    return 0 if all(tally.met for tally in tallies) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
