"""Cases of a library, played on gloo and then on ringwide by one rank of torchrun, which writes down what came of each.

torchrun --nproc-per-node 2 -m tests.integrations.library_cases LIBRARY DIRECTORY
The module LIBRARY_cases beside this one has CASES. It says with MAKES_NO_GROUP if the library does not make the process
group itself. Both backends are played by the same processes, because imports take longer than the cases.
"""

import faulthandler
import importlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

BACKENDS = ("gloo", "ringwide")
WATCHDOG_SECONDS = 180


@dataclass(frozen=True, slots=True)
class Run:
    """One case on one backend."""

    case: str
    backend: str
    directory: Path

    @property
    def files(self) -> Path:
        """Directory that the ranks share, for checkpoints."""
        return self.directory / f"{self.case}-{self.backend}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a case: a model that all ranks should agree on, and numbers that gloo should agree with."""

    model: torch.nn.Module
    numbers: list[float]


Case = Callable[[Run], Outcome]


def flat(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().float().reshape(-1) for parameter in model.parameters()])


def path_of(directory: Path, case: str, backend: str, rank: int) -> Path:
    return directory / f"{case}-{backend}-rank{rank}.pt"


def play(case: Case, run: Run) -> None:
    torch.manual_seed(1)
    outcome = case(run)
    group = type(dist.group.WORLD)
    found: dict[str, Any] = {
        "group": f"{group.__module__}.{group.__qualname__}",
        "parameters": flat(outcome.model),
        "numbers": torch.tensor(outcome.numbers, dtype=torch.float64),
    }
    torch.save(found, path_of(run.directory, run.case, run.backend, dist.get_rank()))


def main(library: str, directory: Path) -> None:
    faulthandler.dump_traceback_later(WATCHDOG_SECONDS, exit=True)
    torch.set_num_threads(1)
    module = importlib.import_module(f"tests.integrations.{library}_cases")
    for backend in BACKENDS:
        if module.MAKES_NO_GROUP:
            dist.init_process_group(backend)
        for name, case in module.CASES.items():
            if os.environ["RANK"] == "0":
                print(f"{name} on {backend}", flush=True)
            play(case, Run(name, backend, directory))
        dist.destroy_process_group()


if __name__ == "__main__":
    sys.modules["tests.integrations.library_cases"] = sys.modules["__main__"]  # for the modules beside this one
    main(sys.argv[1], Path(sys.argv[2]))
