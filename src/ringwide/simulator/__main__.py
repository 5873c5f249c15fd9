"""Try many seeds: `python -m ringwide.simulator --seeds 1000 --first 0`. Prints every seed that fails."""

import argparse
import logging
import sys
import time

from ringwide.simulator import simulate


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m ringwide.simulator", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, metavar="N", help="how many (default: 1000)")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="the first one (default: 0)")
    options = parser.parse_args(arguments)
    started, failing, events = time.perf_counter(), 0, 0
    for seed in range(options.first, options.first + options.seeds):
        outcome = simulate(seed)
        events += outcome.events
        if outcome.problems:
            failing += 1
            print(f"seed {seed}: {outcome.problems[0]} ({len(outcome.problems)} problems)\n    {outcome.scenario}")
    seconds = time.perf_counter() - started
    print(f"{options.seeds} seeds, {failing} failing, {options.seeds / seconds:.0f} seeds/s, {events} events")
    return 1 if failing else 0


if __name__ == "__main__":
    logging.getLogger("ringwide").addHandler(logging.NullHandler())  # many a life gives reason for a warning
    sys.exit(main())
