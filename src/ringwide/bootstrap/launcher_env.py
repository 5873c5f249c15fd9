"""Launcher environment: rank, size and the way to the other ranks, from options or from the launcher's variables.

Each of the two questions is answered by the first source that is set, and by that one alone:

    who am I?              --rank · RINGWIDE_RANK, _SIZE · torchrun (RANK, WORLD_SIZE) · Open MPI · PMI · Slurm
    where are the others?  --peers · RINGWIDE_PEERS (a file) · RINGWIDE_MASTER · MASTER_ADDR and MASTER_PORT

- An empty variable counts as not set.
- mpirun comes before Slurm: under Slurm mpirun starts the ranks, and Slurm then counts only its helper processes.
- WORLD_SIZE without RANK is ignored if another source has the rank: scripts for Slurm often export it.
- A batch script of Slurm has SLURM_PROCID=0 although it is not a rank. Only srun starts ranks, and it sets
  SLURM_STEP_NUM_TASKS.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ringwide.bootstrap.peers import Address, parse_address
from ringwide.errors import ConfigError

_MOST_DIGITS = 9
_OTHERWISE = "or give --rank and --peers"
_LAUNCHERS = "start it with torchrun, srun or mpirun"


@dataclass(frozen=True, slots=True)
class AssignedRank:
    """Rank of this process, and the way to the others: `peers`, or the store at `master`. One alone needs neither."""

    rank: int
    size: int | None  # None: the number of peers
    source: str
    names: tuple[str, ...] = ()
    local_rank: int | None = None
    peers: str | None = None
    master: Address | None = None
    hosted: bool = False  # torchrun has opened the store at `master` already
    attempt: int = 0  # how often torchrun has restarted all ranks

    def __str__(self) -> str:
        size = "" if self.size is None else f" of {self.size}"
        where = f"peers of {self.peers}" if self.peers else f"meeting at {self.master}" if self.master else "alone"
        return f"rank {self.rank}{size}, from {self.source} ({', '.join(self.names)}; {where})"


@dataclass(frozen=True, slots=True)
class _Source:
    """A launcher, and the variables that it sets for ranks."""

    name: str
    rank: str
    sizes: tuple[str, ...]  # the first that is set
    local: str = ""


_OURS = _Source("the environment", "RINGWIDE_RANK", ("RINGWIDE_SIZE",))
_TORCH = _Source("torchrun", "RANK", ("WORLD_SIZE",), "LOCAL_RANK")
_SLURM = _Source("Slurm", "SLURM_PROCID", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"), "SLURM_LOCALID")
_MPI = (
    _Source("Open MPI", "OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_SIZE",), "OMPI_COMM_WORLD_LOCAL_RANK"),
    _Source("MPI", "PMI_RANK", ("PMI_SIZE",), "MPI_LOCALRANKID"),
)
_PMIX = _Source("PMIx", "PMIX_RANK", ("RINGWIDE_SIZE",))
"""It sets a rank, but no size; under Slurm, srun does."""


def find_rank(environ: Mapping[str, str], *, rank: int | None = None, peers: str | None = None) -> AssignedRank:
    """The rank of this process. `rank` and `peers` are the options. A `ConfigError` says what would be right."""
    given = _Given(environ)
    peers = peers or given.get("RINGWIDE_PEERS")
    if rank is not None:
        if peers is None:
            raise ConfigError(
                f"--rank {rank}: without --peers (or RINGWIDE_PEERS) the others are not found; give both, or neither "
                f"and {_LAUNCHERS}"
            )
        return AssignedRank(rank, None, "the command line", ("--rank",), peers=peers)
    who = _who(given, peers)
    if peers is not None:
        return AssignedRank(*who, peers=peers)
    master, hosted = _master(given)
    if master is None and who[1] != 1:
        raise ConfigError(_no_master(who[2], who[3]))
    return AssignedRank(*who, master=master, hosted=hosted, attempt=given.count("TORCHELASTIC_RESTART_COUNT") or 0)


_RUNS = {
    "torchrun": ("TORCHELASTIC_RUN_ID",),
    "Open MPI": ("PMIX_NAMESPACE",),
    "Slurm": ("SLURM_JOB_ID", "SLURM_STEP_ID"),
}


def find_run_id(environ: Mapping[str, str]) -> str:
    """Name that a launcher has given to this run, the same for all its ranks; empty if there is none.

    It has no count of restarts: a machine that joins a torchrun later counts its own.
    """
    for launcher, names in _RUNS.items():
        found = [environ.get(name, "").strip() for name in names]
        if all(found):
            return " ".join([launcher, *found])
    return ""


_Who = tuple[int, int | None, str, tuple[str, ...], int | None]
"""The first five fields of an `AssignedRank`: rank, size, source, names, local rank."""


class _Given:
    """The environment variables that are not empty."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    def get(self, name: str) -> str | None:
        return self._environ.get(name, "").strip() or None

    def first(self, names: Sequence[str]) -> str | None:
        return next((name for name in names if self.get(name) is not None), None)

    def count(self, name: str) -> int | None:
        text = self.get(name) if name else None
        if text is None:
            return None
        if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
            raise ConfigError(f"{name}: {text[:40]!r}: should be a whole number, 0 or more; set it right, {_OTHERWISE}")
        return int(text)


def _who(given: _Given, peers: str | None) -> _Who:
    if given.first((_OURS.rank, *_OURS.sizes)) and not _is_pmix_alone(given):
        return _of(_OURS, given, peers)
    if given.get(_TORCH.rank):
        launched = given.get("TORCHELASTIC_RUN_ID") is not None
        return _of(_TORCH, given, peers, name="torchrun" if launched else "the environment")
    for source in _MPI:
        if given.get(source.rank):
            return _of(source, given, peers)
    if given.get(_SLURM.rank):
        _require_srun(given)
        return _of(_SLURM, given, peers)
    if given.get(_PMIX.rank):
        return _of(_PMIX, given, peers)
    raise ConfigError(_no_rank(given, peers))


def _is_pmix_alone(given: _Given) -> bool:
    """RINGWIDE_SIZE alone may complete the rank of PMIx."""
    return given.get(_OURS.rank) is None and given.get(_PMIX.rank) is not None


def _of(source: _Source, given: _Given, peers: str | None, name: str = "") -> _Who:
    rank, sized_by = given.count(source.rank), given.first(source.sizes)
    if rank is None:
        raise ConfigError(_incomplete(sized_by or source.sizes[0], given, source.rank))
    local = given.count(source.local)
    if sized_by is None:
        if peers is not None:  # which are counted
            return rank, None, name or source.name, (source.rank,), local
        raise ConfigError(_incomplete(source.rank, given, source.sizes[0]))
    size = given.count(sized_by) or 0
    if not size:
        raise ConfigError(f"{sized_by} is 0: a ring has at least one rank; set it right, {_OTHERWISE}")
    if rank >= size:
        allowed = "the only rank is 0" if size == 1 else f"ranks go from 0 to {size - 1}"
        raise ConfigError(f"{source.rank} is {rank}, but {sized_by} is {size}: {allowed}; set them right, {_OTHERWISE}")
    return rank, size, name or source.name, (source.rank, sized_by), local


def _incomplete(there: str, given: _Given, missing: str) -> str:
    return f"{there} is set (to {given.get(there)}), but {missing} is not: set both, {_OTHERWISE}"


def _require_srun(given: _Given) -> None:
    tasks = given.first(("SLURM_NTASKS", "SLURM_NPROCS"))
    if given.first(("SLURM_STEP_NUM_TASKS", "SLURM_STEP_ID", "SLURM_STEPID")) or tasks is None:
        return
    if (given.count(tasks) or 0) > 1 and given.count(_SLURM.rank) == 0:
        raise ConfigError(
            f"{tasks} is {given.get(tasks)}, but this process was not started by srun (SLURM_STEP_NUM_TASKS is not "
            "set): a batch script is not one of the ranks; write srun before the command, or start it with torchrun"
        )


def _no_rank(given: _Given, peers: str | None) -> str:
    if given.get(_TORCH.sizes[0]):
        return _incomplete(_TORCH.sizes[0], given, _TORCH.rank)
    beginning = f"{peers} says where the others are, but nothing" if peers else "nothing"
    if given.get("SLURM_JOB_ID"):
        return f"{beginning} says which rank this is, as it was not started by srun; write srun before the command"
    options = "--rank" if peers else "--rank and --peers"
    return (
        f"{beginning} says which rank this is: give {options}, or {_LAUNCHERS}, or set RINGWIDE_RANK, RINGWIDE_SIZE "
        "and RINGWIDE_MASTER (host:port)"
    )


def _master(given: _Given) -> tuple[Address | None, bool]:
    if (ours := given.get("RINGWIDE_MASTER")) is not None:
        return parse_address(ours, "RINGWIDE_MASTER"), False
    host, port = given.get("MASTER_ADDR"), given.get("MASTER_PORT")
    if host is None and port is None:
        return None, False
    if host is None or port is None:
        there, missing = ("MASTER_PORT", "MASTER_ADDR") if host is None else ("MASTER_ADDR", "MASTER_PORT")
        raise ConfigError(
            f"{there} is set (to {given.get(there)}), but {missing} is not: ranks meet at both, the host of rank 0 and "
            "a free port there; or give --peers"
        )
    text = f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"
    hosted = (given.get("TORCHELASTIC_USE_AGENT_STORE") or "").lower() in ("true", "1")
    return parse_address(text, "MASTER_ADDR and MASTER_PORT"), hosted


def _no_master(source: str, names: Sequence[str]) -> str:
    example = "host of rank 0"
    if source == "Slurm":
        example = 'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
    return (
        f"{' and '.join(names)} say who this is, but nothing says where the ranks meet: set MASTER_ADDR and "
        f"MASTER_PORT ({example}, and a port that is free there), or give --peers FILE with the address of every rank"
    )
