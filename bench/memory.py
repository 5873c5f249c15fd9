"""Memory of a large all-reduce: `python -m bench memory [--size 256MiB] [--calls 100] [--ranks 2,4]`."""

import argparse

from pydantic import ByteSize, TypeAdapter

from bench.fleet import run_workers
from bench.machine import describe_machine

ALLOWED_BEYOND_A_BUCKET_MIB = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks", default="2,4", help="numbers of ranks, separated by commas (default: %(default)s)")
    parser.add_argument("--size", default="256MiB", help="bytes of the fp32 tensor (default: %(default)s)")
    parser.add_argument("--calls", type=int, default=100, help="all-reduces one after the other (default: %(default)s)")


def run(options: argparse.Namespace) -> None:
    nbytes = int(TypeAdapter(ByteSize).validate_python(options.size))
    print(describe_machine())
    print(
        f"{'ranks':>5} {'bucket':>10} {'allowed':>10}   peak above the start, MiB: after 1, 10, {options.calls} calls"
    )
    for ranks in map(int, options.ranks.split(",")):
        found = run_workers("bench.memory_worker", ranks, {"bytes": nbytes, "calls": max(10, options.calls)})
        allowed = found["bucket"] + ALLOWED_BEYOND_A_BUCKET_MIB
        peaks = ", ".join(f"{found[when]:.0f}" for when in ("first", "tenth", "last"))
        verdict = "ok" if found["last"] <= allowed else "TOO MUCH"
        print(f"{ranks:>5} {found['bucket']:>10.0f} {allowed:>10.0f}   {peaks}   {verdict}", flush=True)
