"""Node of a ring: joins it, then checks and measures all-reduce, or takes part in an experiment.

python -m ringwide.node --rank 0 --peers peers.txt
torchrun --nproc-per-node 4 -m ringwide.node
"""

import argparse
import json
import os
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ringwide.config.command_exit import Parser, add_log_options, finish

if TYPE_CHECKING:  # slow imports are made where they are used, so that --help is instant
    from ringwide.bootstrap.launcher_env import AssignedRank
    from ringwide.config.ring_config import RingConfig
    from ringwide.experiment.worker import Latest

DEFAULT_SIZES = ["4KiB", "64KiB", "1MiB", "16MiB"]
LARGEST_SIZE = 16 * 1024**3

DESCRIPTION = """\
Join the ring as rank N; without --rank, as the rank that torchrun, srun, mpirun or RINGWIDE_RANK gives. Without
--config: check all-reduce against known sums, measure it and print a table; the exit code is 1 if any element was
wrong. With --config: take part in that experiment.
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(prog="python -m ringwide.node", description=DESCRIPTION)
    add_arguments(parser)
    arguments = parser.parse_args(argv)
    return finish(lambda: run(arguments), arguments)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rank", type=int, metavar="N", help="which peer this is, from 0")
    parser.add_argument("--peers", metavar="FILE", help="one host:port a line, line n for rank n; or a YAML list")
    parser.add_argument("--config", type=Path, metavar="EXPERIMENT", help="take part in this experiment (YAML)")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change a key of the experiment, or without --config of the ring, as ring.lanes=2",
    )
    parser.add_argument(
        "--resume",
        type=Path,
        metavar="RUN",
        help="resume from the last checkpoint of this run, or from this step-N.pt; latest: of the last run",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    access = parser.add_mutually_exclusive_group()
    access.add_argument("--key-file", metavar="FILE", help="the key that all ranks share, made by `ringwide keygen`")
    access.add_argument("--insecure", action="store_true", help="allow listening beyond loopback without a key")
    parser.add_argument(
        "--sizes", nargs="+", default=DEFAULT_SIZES, metavar="BYTES", help="sizes to check, such as 4096 1MiB"
    )
    parser.add_argument(
        "--seconds-per-size", type=float, default=0.5, metavar="S", help="how long each size is measured (0.5)"
    )
    add_log_options(parser)
    parser.add_argument("--run-directory", type=Path, help=argparse.SUPPRESS)  # from the launcher, which reads the JSON
    parser.add_argument("--run-id", default="", help=argparse.SUPPRESS)  # the same for all nodes of a launcher
    parser.add_argument("--listener", type=int, help=argparse.SUPPRESS)  # inherited descriptor of a listening socket


def run(arguments: argparse.Namespace) -> int:
    import uvloop

    return uvloop.run(_check(arguments) if arguments.config is None else _experiment(arguments))


def _assigned(arguments: argparse.Namespace) -> "AssignedRank":
    """Rank and addresses of this node. If the command does not name the rank, one line on standard error does."""
    from ringwide.bootstrap.launcher_env import find_rank

    assigned = find_rank(os.environ, rank=arguments.rank, peers=arguments.peers)
    if arguments.rank is None and assigned.rank == 0:
        print(f"ringwide: {assigned}", file=sys.stderr, flush=True)
    return assigned


async def _check(arguments: argparse.Namespace) -> int:
    from ringwide.experiment.find_peers import peer_finder_for
    from ringwide.observe.check import Row, check, document, header, line, verdict
    from ringwide.ring import join

    sizes, seconds = _sizes(arguments.sizes), _seconds(arguments.seconds_per_size)
    config = _ring_config(arguments)
    assigned = _assigned(arguments)
    shows_rows = assigned.rank == 0 and not arguments.json

    def show(row: Row) -> None:
        if shows_rows:
            print(line(row), flush=True)

    found = await peer_finder_for(assigned).find(config, "check" if assigned.rank == 0 else None)
    async with join(rank=assigned.rank, peers=found.peers, config=config, listener=found.listener) as ring:
        if shows_rows:
            print(header(), flush=True)
        rows = await check(ring, sizes, seconds_per_size=seconds, on_row=show)
    conclude = document if arguments.json else verdict
    print(conclude(ring.rank, ring.size, rows))
    return 1 if any(row.wrong or row.wrong_here for row in rows) else 0


async def _experiment(arguments: argparse.Namespace) -> int:
    from ringwide.errors import require_torch

    require_torch("an experiment")
    from ringwide.experiment.find_peers import peer_finder_for
    from ringwide.experiment.stop_signals import NodeStop
    from ringwide.experiment.sweep import load_variants
    from ringwide.experiment.worker import Worker, run_alone, run_and_tell, run_quietly

    variants = load_variants(arguments.config, _overrides(arguments))
    # Modules with the user's model or data are looked for next to the experiment, then in the working directory.
    sys.path[:0] = [str(arguments.config.resolve().parent), str(Path.cwd())]
    assigned = _assigned(arguments)
    listener = None if arguments.listener is None else socket.socket(fileno=arguments.listener)
    resume = _resume(arguments.resume, assigned)
    peers = peer_finder_for(assigned, listener)
    worker = Worker(assigned.rank, peers, arguments.config, NodeStop(), resume, arguments.run_id)
    if arguments.json:
        return await worker.stopping.run(run_and_tell(worker, variants, arguments.run_directory))
    if not worker.reports:
        return await worker.stopping.run(run_quietly(worker, variants))
    return await worker.stopping.run(run_alone(worker, variants, sys.stdout))


def _resume(resume: Path | None, assigned: "AssignedRank") -> "Path | Latest | None":
    """The run to resume. A node that torchrun has started anew goes on with what this torchrun has begun."""
    from ringwide.experiment.recorder import LATEST
    from ringwide.experiment.worker import Latest

    if resume is None and assigned.attempt:
        return Latest(since=_parent_began(), required=False)
    return Latest() if resume == LATEST else resume


def _parent_began() -> float:
    """Time at which the parent of this process began. If that is not known, now: nothing was written since then."""
    try:
        after_name = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()
        seconds_after_boot = int(after_name[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return time.time()
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + seconds_after_boot


def _ring_config(arguments: argparse.Namespace) -> "RingConfig":
    from ringwide.errors import ConfigError
    from ringwide.experiment.config import load_ring

    if arguments.resume is not None:
        raise ConfigError(f"--resume {arguments.resume}: there is no experiment to resume; name it with --config")
    return load_ring(_overrides(arguments))


def _overrides(arguments: argparse.Namespace) -> list[str]:
    """Changes from --set, --key-file and --insecure, in the form of --set."""
    access: list[str] = []
    if arguments.key_file is not None:
        access = [f"ring.key_file={json.dumps(arguments.key_file, ensure_ascii=False)}"]
    elif arguments.insecure:
        access = ["ring.insecure=true"]
    return [*arguments.set, *access]


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
