"""`python -m bench [allreduce]`: see `python -m bench --help`."""

import argparse
import sys

from bench import allreduce


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure ringwide beside its peers.")
    commands = parser.add_subparsers(dest="command", required=True)
    allreduce.add_arguments(commands.add_parser("allreduce", help="all-reduce beside gloo, interleaved"))
    options = parser.parse_args(sys.argv[1:] or ["allreduce"])
    {"allreduce": allreduce.run}[options.command](options)


if __name__ == "__main__":
    main()
