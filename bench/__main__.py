"""`python -m bench [COMMAND]`, by default speed --short: see `python -m bench --help`."""

import argparse
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

from bench import (
    accuracy,
    backend,
    blocking,
    codecs,
    compare,
    figures,
    halves,
    logging,
    memory,
    nonfinite,
    profile,
    protection,
    same_host,
    startup,
    training,
)
from bench.costs import command as costs
from bench.delay import command as delay
from bench.speed import command as speed

COMMANDS = {
    "speed": (speed, "all-reduce beside everyone else and beside the limit (the default is its short form)"),
    "backend": (backend, "torch.distributed and DDP over gloo and over ringwide, in turns"),
    "blocking": (blocking, "what waiting costs programs without asyncio"),
    "accuracy": (accuracy, "what lossy codecs lose, over the number of ranks"),
    "codecs": (codecs, "codecs beside each other and gloo, over links of several rates"),
    "halves": (halves, "16-bit floats beside gloo: speed, bytes and errors"),
    "costs": (costs, "what it costs: time, processor and memory, allocations, joining, over ranks and sizes"),
    "delay": (delay, "long links: 50 and 100 ms round trips, 1 to 16 lanes, through a delaying proxy"),
    "memory": (memory, "what a large all-reduce adds to a process"),
    "training": (training, "the same training loop over ringwide and over gloo, in turns"),
    "logging": (logging, "what silent, normal and verbose logging cost"),
    "protection": (protection, "what checksums, encryption and TLS cost"),
    "nonfinite": (nonfinite, "what looking for NaN and infinity costs"),
    "same_host": (same_host, "ranks on one machine by TCP, by Unix-domain sockets and by shared memory"),
    "compare": (compare, "two results of one benchmark: what became slower, beyond noise"),
    "profile": (profile, "where the time of an all-reduce goes, by perf"),
    "figures": (figures, "docs/figures.md from the saved results"),
    "startup": (startup, "importing the package, asking for help"),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure ringwide beside its peers.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, (module, summary) in COMMANDS.items():
        module.add_arguments(commands.add_parser(name, help=summary))
    options = parser.parse_args(sys.argv[1:] or ["speed", "--short"])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that what was started is ended
    try:
        COMMANDS[options.command][0].run(options)
    finally:
        end_children()


def end_children() -> None:
    """Who is still there: a signal may come while a process is being started, when nobody knows it yet."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for children in Path("/proc/self/task").glob("*/children"):
        for child in map(int, children.read_text().split()):
            with suppress(ProcessLookupError, ChildProcessError):  # it has ended meanwhile
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)


if __name__ == "__main__":
    main()
