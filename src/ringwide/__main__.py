"""Command line of ringwide. Each command makes its slow imports itself, so that --help is instant."""

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from ringwide import __version__, node
from ringwide.config.command_exit import Parser, add_log_options, finish

if TYPE_CHECKING:
    from ringwide.experiment.launch import NodeHost

RUN_DESCRIPTION = """\
Start every node of an experiment as a process of its own on this machine, or with --on ray on the machines of a Ray
cluster, show its progress, and write a report to runs/NAME-TIME. Ctrl-C or SIGTERM stops all nodes after the same
step; the report then covers the steps up to it.
"""

KEYGEN = """\
Make a key for rings that reach beyond this machine: only who has it may join. The key is written to a file and
never shown; it cannot be given on a command line.
"""


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    return finish(lambda: int(arguments.command(arguments)), arguments)


def parser() -> argparse.ArgumentParser:
    top = Parser(prog="ringwide", description="Peer-to-peer ring all-reduce, and training with it.")
    top.add_argument("--version", action="version", version=f"ringwide {__version__}")
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    run = commands.add_parser(
        "run", help="start all nodes of an experiment, on this machine or a Ray cluster", description=RUN_DESCRIPTION
    )
    run.add_argument("experiment", type=Path, metavar="EXPERIMENT", help="a YAML file, such as configs/quickstart.yaml")
    run.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="change a key, as in ring.buffer_bytes=8MiB"
    )
    run.add_argument("--dry-run", action="store_true", help="print the whole configuration and the plan; start nothing")
    run.add_argument(
        "--resume",
        type=Path,
        metavar="RUN",
        help="resume from the last checkpoint of this run, or from this step-N.pt; latest: of the last run",
    )
    run.add_argument(
        "--restarts",
        type=_count,
        default=0,
        metavar="N",
        help="if a node crashes or is lost, resume from the last checkpoint, up to N times (0)",
    )
    run.add_argument(
        "--on", choices=("here", "ray"), default="here", help="where nodes run: this machine, or Ray (here)"
    )
    run.add_argument("--address", metavar="HOST:PORT", help="with --on ray: its head node (RAY_ADDRESS, or auto)")
    run.add_argument("--cpus-per-node", type=int, metavar="N", help="with --on ray: CPUs and threads of a node (1)")
    add_log_options(run)
    run.set_defaults(command=_run)

    report = commands.add_parser("report", help="redraw the report of a run, or compare several runs")
    report.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="the directory of a run or of a sweep")
    report.add_argument("--out", type=Path, metavar="FILE", help="the .html file to write; a .md goes next to it")
    report.set_defaults(command=_report)

    config = commands.add_parser("config", help="print the schema, the keys or the settings of experiment files")
    about = config.add_subparsers(required=True, metavar="WHAT")
    schema = about.add_parser("schema", help="print the JSON Schema of an experiment file")
    schema.set_defaults(command=_schema)
    keys = about.add_parser("keys", help="describe every key of an experiment file")
    keys.set_defaults(command=_keys)
    settings = about.add_parser("settings", help="print the settings of a ring as a table")
    settings.set_defaults(command=_settings)

    keygen = commands.add_parser("keygen", help="make the key that all ranks of a ring share", description=KEYGEN)
    keygen.add_argument("file", type=Path, metavar="FILE", help="a new file, which only you will be able to read")
    keygen.set_defaults(command=_keygen)

    one = commands.add_parser(
        "node",
        help="run one node: check and measure a ring, or take part in an experiment",
        description=node.DESCRIPTION,
    )
    node.add_arguments(one)
    one.set_defaults(command=node.run)
    return top


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of times, such as 3")
    return int(text)


def _keygen(arguments: argparse.Namespace) -> int:
    from ringwide.bootstrap.protection import VARIABLE, make_key_file

    make_key_file(arguments.file)
    print(
        f"A new key is in {arguments.file}, which only you can read. Copy it to every machine of the ring (scp -p),\n"
        f"and name it there: key_file: FILE in the settings, --key-file FILE, or the variable {VARIABLE}."
    )
    return 0


def _run(arguments: argparse.Namespace) -> int:
    import uvloop

    from ringwide.experiment.launch import run_experiment

    return uvloop.run(
        run_experiment(
            arguments.experiment,
            sys.stdout,
            overrides=arguments.set,
            dry_run=arguments.dry_run,
            resume=arguments.resume,
            restarts=arguments.restarts,
            host=_host(arguments),
        )
    )


def _host(arguments: argparse.Namespace) -> "Callable[[], AbstractContextManager[NodeHost]]":
    from ringwide.errors import ConfigError
    from ringwide.experiment.launch import ThisMachine

    if arguments.on == "ray":
        from ringwide.experiment.ray.launcher import on_ray

        return lambda: on_ray(arguments.address, arguments.cpus_per_node)
    for option, value in (("--address", arguments.address), ("--cpus-per-node", arguments.cpus_per_node)):
        if value is not None:
            raise ConfigError(f"{option} {value}: this option is for a Ray cluster; add --on ray, or leave it out")
    return lambda: nullcontext(ThisMachine())


def _report(arguments: argparse.Namespace) -> int:
    from datetime import datetime

    from ringwide.experiment.report.writing import report

    return report(arguments.runs, arguments.out, sys.stdout, now=datetime.now())


def _schema(_: argparse.Namespace) -> int:
    import json

    from ringwide.experiment.config import ExperimentConfig

    print(json.dumps(ExperimentConfig.model_json_schema(), indent=2))
    return 0


def _keys(_: argparse.Namespace) -> int:
    from ringwide.experiment.config import keys_reference

    print(keys_reference())
    return 0


def _settings(_: argparse.Namespace) -> int:
    from ringwide.config.ring_config import RingConfig
    from ringwide.config.validation import settings_table

    print(settings_table(RingConfig))
    return 0


if __name__ == "__main__":
    sys.exit(main())
