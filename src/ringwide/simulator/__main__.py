"""Try many seeds: `python -m ringwide.simulator --seeds 20000`. Prints every seed that fails."""

import argparse
import sys
import time

from ringwide.simulator.many import cores, quiet, try_seeds


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m ringwide.simulator", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, metavar="N", help="how many (default: 1000)")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="the first one (default: 0)")
    parser.add_argument("--jobs", type=int, default=cores(), metavar="J", help="processes (default: one a core)")
    options = parser.parse_args(arguments)
    if options.seeds < 1 or options.jobs < 1:
        parser.error(f"--seeds {options.seeds} --jobs {options.jobs}: both must be at least 1")
    started, failing, events = time.perf_counter(), 0, 0
    for tried in try_seeds(options.first, options.seeds, jobs=options.jobs):
        events += tried.events
        failing += len(tried.failing)
        for bad in tried.failing:
            print(f"seed {bad.seed}: {bad.problems[0]} ({len(bad.problems)} problems)\n    {bad.scenario}", flush=True)
    seconds = time.perf_counter() - started
    print(f"{options.seeds} seeds, {failing} failing, {options.seeds / seconds:.0f} seeds/s, {events} events")
    return 1 if failing else 0


if __name__ == "__main__":
    quiet()
    sys.exit(main())
