"""One node: join the ring, check it against known sums and measure it, or take part in an experiment.

python -m ringwide.node --rank 0 --peers peers.txt
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ringwide.command import finish

if TYPE_CHECKING:  # --help must answer at once, so what takes time to import is imported where it is used
    from ringwide.config import RingConfig
    from ringwide.experiment.config import ExperimentConfig

DEFAULT_SIZES = ["4KiB", "64KiB", "1MiB", "16MiB"]
LARGEST_SIZE = 16 * 1024**3
STEP_EVERY_SECONDS = 0.1

DESCRIPTION = """\
Join the ring as rank N. Without --config: check all-reduce against known sums, measure it and print a table; the exit
code is 1 if any element was wrong. With --config: take part in that experiment.
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m ringwide.node", description=DESCRIPTION)
    add_arguments(parser)
    arguments = parser.parse_args(argv)
    return finish(lambda: run(arguments))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rank", type=int, required=True, metavar="N", help="which peer this is, from 0")
    parser.add_argument(
        "--peers", required=True, metavar="FILE", help="one host:port a line, line n for rank n; or a YAML list"
    )
    parser.add_argument("--config", type=Path, metavar="EXPERIMENT", help="take part in this experiment (YAML)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument("--insecure", action="store_true", help="allow listening beyond loopback without a key")
    parser.add_argument(
        "--sizes", nargs="+", default=DEFAULT_SIZES, metavar="BYTES", help="sizes to check, such as 4096 1MiB"
    )
    parser.add_argument(
        "--seconds-per-size", type=float, default=0.5, metavar="S", help="how long each size is measured (0.5)"
    )
    parser.add_argument("--parent", type=int, help=argparse.SUPPRESS)  # the launcher, with which this node ends


def run(arguments: argparse.Namespace) -> int:
    import uvloop

    if arguments.parent is not None:
        from ringwide.experiment.leash import end_with

        end_with(arguments.parent)
    return uvloop.run(_check(arguments) if arguments.config is None else _experiment(arguments))


async def _check(arguments: argparse.Namespace) -> int:
    from ringwide.observe import table
    from ringwide.observe.check import Row, check
    from ringwide.ring import join

    sizes, seconds = _sizes(arguments.sizes), _seconds(arguments.seconds_per_size)
    shows_rows = arguments.rank == 0 and not arguments.json

    def show(row: Row) -> None:
        if shows_rows:
            print(table.line(row), flush=True)

    async with join(rank=arguments.rank, peers=arguments.peers, config=_ring_config(arguments)) as ring:
        if shows_rows:
            print(table.header(), flush=True)
        rows = await check(ring, sizes, seconds_per_size=seconds, on_row=show)
    document = table.document(ring.rank, ring.size, rows)
    print(document if arguments.json else table.verdict(ring.rank, ring.size, rows))
    return 1 if any(row.wrong or row.wrong_here for row in rows) else 0


async def _experiment(arguments: argparse.Namespace) -> int:
    from ringwide.experiment import summary
    from ringwide.experiment.messages import encode
    from ringwide.experiment.pace import Paced
    from ringwide.experiment.part import take_part
    from ringwide.experiment.view import Lines
    from ringwide.training.progress import Step

    lines = Lines(1, sys.stdout)

    def report(step: Step) -> None:
        if arguments.json:
            print(encode(step), flush=True)
        else:
            lines.update(arguments.rank, step)

    result = await take_part(
        _experiment_config(arguments),
        rank=arguments.rank,
        peers=arguments.peers,
        experiment=arguments.config,
        on_step=Paced(report, every_seconds=STEP_EVERY_SECONDS),
    )
    print(encode(result) if arguments.json else summary.table({arguments.rank: result}), flush=True)
    return 0


def _ring_config(arguments: argparse.Namespace) -> "RingConfig":
    from ringwide.config import RingConfig

    return RingConfig.model_validate({"insecure": arguments.insecure})


def _experiment_config(arguments: argparse.Namespace) -> "ExperimentConfig":
    from ringwide.experiment.config import load_experiment

    config = load_experiment(arguments.config)
    if not arguments.insecure:
        return config
    return config.model_copy(update={"ring": config.ring.model_copy(update={"insecure": True})})


def _sizes(texts: Sequence[str]) -> list[int]:
    from pydantic import ByteSize, TypeAdapter, ValidationError

    from ringwide.errors import ConfigError

    sizes = []
    for text in texts:
        try:
            sizes.append(int(TypeAdapter(ByteSize).validate_python(text)))
        except ValidationError as error:
            raise ConfigError(f"--sizes: {text!r}: not a size; write bytes, or a unit as in 64KiB or 1MiB") from error
        if not 1 <= sizes[-1] <= LARGEST_SIZE:
            raise ConfigError(f"--sizes: {text!r}: out of range; sizes go from 1 byte to 16GiB")
    return sizes


def _seconds(seconds: float) -> float:
    from ringwide.errors import ConfigError

    if not 0 <= seconds <= 3600:
        raise ConfigError(f"--seconds-per-size: {seconds:g}: out of range; it goes from 0 to 3600")
    return seconds


if __name__ == "__main__":
    sys.exit(main())
