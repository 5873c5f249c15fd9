"""One node of an experiment, as the command `node` runs it: told in JSON to a launcher, or recorded by itself."""

from pathlib import Path

from ringwide.experiment.config import ExperimentConfig
from ringwide.experiment.logfile import log_file
from ringwide.experiment.messages import Message, encode
from ringwide.experiment.part import Part, take_part
from ringwide.experiment.stopping import ENDED_BY_SIGNAL
from ringwide.training.progress import Result


async def run_and_tell(part: Part, config: ExperimentConfig, directory: Path) -> int:
    """Say everything as JSON, one object a line; whoever listens records it."""
    with log_file(log_path(config, directory, part.rank)) as log:

        def tell(message: Message) -> None:
            print(encode(message), flush=True)
            log.hear(message)

        result = (await take_part(part, config, directory, tell))[part.rank]
        tell(result)
    return exit_code(result)


def log_path(config: ExperimentConfig, directory: Path, rank: int) -> Path | None:
    return directory / f"node-{rank}.log" if config.logging == "verbose" else None


def exit_code(result: Result) -> int:
    return ENDED_BY_SIGNAL + result.stopped_by if result.stopped_by else 0
