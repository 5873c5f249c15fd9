"""Command that tries many seeds and prints those that fail: `python -m ringwide.simulator --seeds 20000`.

A seed is a whole life of a ring with faults (`--seeds`), or a program of its users (`--programs`), simulated or, with
`--processes`, on real processes.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from textwrap import indent

from ringwide.simulator.ring_life import Tried, cores, quiet, try_seeds


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m ringwide.simulator", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, metavar="N", help="number of lives (default: 1000)")
    parser.add_argument("--programs", type=int, metavar="N", help="run N programs instead")
    parser.add_argument("--processes", action="store_true", help="run programs on real processes, over every transport")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="first seed (default: 0)")
    parser.add_argument("--jobs", type=int, default=cores(), metavar="J", help="processes (default: one a core)")
    options = parser.parse_args(arguments)
    count = options.seeds if options.programs is None else options.programs
    if count < 1 or options.jobs < 1:
        parser.error(f"{count} seeds, --jobs {options.jobs}: both must be at least 1")
    started, failing, events = time.perf_counter(), 0, 0
    for tried in _tried(options, count):
        events += tried.events
        failing += len(tried.failing)
        for bad in tried.failing:
            problems = "".join(f"    ! {problem}\n" for problem in bad.problems[1:5])
            print(
                f"seed {bad.seed}: {bad.problems[0]} ({len(bad.problems)} problems)\n{problems}{_indented(bad.story)}",
                flush=True,
            )
    seconds = time.perf_counter() - started
    what = "seeds" if options.programs is None else "programs"
    print(f"{count} {what}, {failing} failing, {count / seconds:.0f} {what}/s, {events} events")
    return 1 if failing else 0


def _tried(options: argparse.Namespace, count: int) -> Iterator[Tried]:
    if options.programs is None:
        return try_seeds(options.first, count, jobs=options.jobs)
    if options.processes:
        from ringwide.simulator.programs.processes import try_programs

        return try_programs(options.first, count)
    from ringwide.simulator.programs.world import run_program

    return try_seeds(options.first, count, jobs=options.jobs, try_one=run_program)


def _indented(story: str) -> str:
    return indent(story, "    ")


if __name__ == "__main__":
    quiet()
    sys.exit(main())
