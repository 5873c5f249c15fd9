"""Launcher environments: every source, their order, and every incomplete or wrong environment."""

from typing import Any

import pytest

from ringwide.bootstrap.launcher_env import AssignedRank, find_rank, find_run_id
from ringwide.bootstrap.peers import Address
from ringwide.errors import ConfigError

MEETING = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
TORCH = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "0", **MEETING}
TORCHRUN = {
    **TORCH,
    "TORCHELASTIC_RUN_ID": "x",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TORCHELASTIC_RESTART_COUNT": "2",
}
SLURM = {
    "SLURM_JOB_ID": "9",
    "SLURM_PROCID": "2",
    "SLURM_NTASKS": "4",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
}
BATCH = {"SLURM_JOB_ID": "9", "SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}
PMI = {"PMI_RANK": "1", "PMI_SIZE": "2"}
OURS = {"RINGWIDE_RANK": "0", "RINGWIDE_SIZE": "4", "RINGWIDE_MASTER": "[::1]:5000"}
AT = Address("10.0.0.1", 29500)


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        (TORCHRUN, AssignedRank(1, 4, "torchrun", ("RANK", "WORLD_SIZE"), 0, None, AT, hosted=True, attempt=2)),
        (TORCH, AssignedRank(1, 4, "the environment", ("RANK", "WORLD_SIZE"), 0, None, AT)),
        (SLURM | MEETING, AssignedRank(2, 4, "Slurm", ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"), 1, None, AT)),
        (
            OPEN_MPI | MEETING,
            AssignedRank(3, 4, "Open MPI", ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), 1, None, AT),
        ),
        (PMI | MEETING, AssignedRank(1, 2, "MPI", ("PMI_RANK", "PMI_SIZE"), None, None, AT)),
        (
            OURS,
            AssignedRank(0, 4, "the environment", ("RINGWIDE_RANK", "RINGWIDE_SIZE"), None, None, Address("::1", 5000)),
        ),
        (
            {"RINGWIDE_RANK": "1", "RINGWIDE_PEERS": "peers.txt"},
            AssignedRank(1, None, "the environment", ("RINGWIDE_RANK",), None, "peers.txt"),
        ),
        (
            {"PMIX_RANK": "1", "RINGWIDE_SIZE": "2", **MEETING},
            AssignedRank(1, 2, "PMIx", ("PMIX_RANK", "RINGWIDE_SIZE"), None, None, AT),
        ),
        (
            {"MASTER_ADDR": "fe80::1", "MASTER_PORT": "1", **PMI},
            AssignedRank(1, 2, "MPI", ("PMI_RANK", "PMI_SIZE"), None, None, Address("fe80::1", 1)),
        ),
    ],
)
def test_every_source_says_who_and_where(environ: dict[str, str], place: AssignedRank) -> None:
    assert find_rank(environ) == place


@pytest.mark.parametrize(
    ("environ", "options", "rank", "source"),
    [
        ({**TORCHRUN, **OURS, **SLURM}, {"rank": 3, "peers": "p"}, 3, "the command line"),
        ({"RANK": "nonsense", "WORLD_SIZE": ""}, {"rank": 3, "peers": "p"}, 3, "the command line"),
        ({"RINGWIDE_PEERS": "p"}, {"rank": 3}, 3, "the command line"),
        ({**TORCHRUN, **OURS}, {}, 0, "the environment"),
        ({**TORCHRUN, **SLURM, **OPEN_MPI, **PMI}, {}, 1, "torchrun"),
        ({**TORCHRUN, **BATCH}, {}, 1, "torchrun"),
        ({**SLURM, **OPEN_MPI, **MEETING}, {}, 3, "Open MPI"),
        ({**BATCH, **OPEN_MPI, **MEETING}, {}, 3, "Open MPI"),
        ({**SLURM, **PMI, **MEETING}, {}, 1, "MPI"),
        ({**SLURM, "PMIX_RANK": "2", **MEETING}, {}, 2, "Slurm"),
        ({**SLURM, **MEETING, "WORLD_SIZE": "4"}, {}, 2, "Slurm"),
        ({**SLURM, **MEETING, "RANK": " ", "RINGWIDE_RANK": ""}, {}, 2, "Slurm"),
        (SLURM, {"peers": "p"}, 2, "Slurm"),
        (OPEN_MPI, {"peers": "p"}, 3, "Open MPI"),
    ],
)
def test_which_source_goes_first(environ: dict[str, str], options: dict[str, Any], rank: int, source: str) -> None:
    place = find_rank(environ, **options)
    assert (place.rank, place.source) == (rank, source)


@pytest.mark.parametrize(
    ("environ", "options", "peers", "master"),
    [
        ({**TORCHRUN, "RINGWIDE_PEERS": "q"}, {"peers": "p"}, "p", None),
        ({**TORCHRUN, "RINGWIDE_PEERS": "q", "RINGWIDE_MASTER": "h:1"}, {}, "q", None),
        ({**TORCHRUN, "RINGWIDE_MASTER": "h:1"}, {}, None, Address("h", 1)),
        (TORCHRUN, {}, None, AT),
    ],
)
def test_where_the_others_are(
    environ: dict[str, str], options: dict[str, Any], peers: str | None, master: Address | None
) -> None:
    place = find_rank(environ, **options)
    assert (place.peers, place.master) == (peers, master)
    assert place.hosted is (master == AT)  # a store of our own choice is not that of torchrun


@pytest.mark.parametrize(
    "environ",
    [
        {"RANK": "0", "WORLD_SIZE": "1"},
        {**BATCH, "SLURM_NTASKS": "1"},
        {**SLURM, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"},  # srun --pty bash, in a job of more
        {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"},
    ],
)
def test_one_that_is_alone_need_not_meet(environ: dict[str, str]) -> None:
    place = find_rank(environ)
    assert (place.rank, place.size, place.master) == (0, 1, None)
    assert str(place).endswith("; alone)")


@pytest.mark.parametrize(
    ("environ", "options", "message"),
    [
        ({}, {}, "nothing says which rank this is: give --rank and --peers, or start it with torchrun, srun or mpirun"),
        ({}, {"peers": "p.txt"}, "p.txt says where the others are, but nothing says which rank this is: give --rank"),
        ({}, {"rank": 1}, "--rank 1: without --peers (or RINGWIDE_PEERS) the others are not found"),
        (TORCHRUN, {"rank": 1}, "--rank 1: without --peers"),
        ({"RANK": "2"}, {}, "RANK is set (to 2), but WORLD_SIZE is not: set both, or give --rank and --peers"),
        ({"WORLD_SIZE": "2"}, {}, "WORLD_SIZE is set (to 2), but RANK is not"),
        ({**TORCH, "RANK": "4"}, {}, "RANK is 4, but WORLD_SIZE is 4: ranks go from 0 to 3"),
        ({**TORCH, "WORLD_SIZE": "1"}, {}, "RANK is 1, but WORLD_SIZE is 1: the only rank is 0"),
        ({**TORCH, "WORLD_SIZE": "0"}, {}, "WORLD_SIZE is 0: a ring has at least one rank"),
        ({**TORCH, "RANK": "-1"}, {}, "RANK: '-1': should be a whole number, 0 or more"),
        ({**TORCH, "RANK": "two"}, {}, "RANK: 'two': should be a whole number"),
        ({**TORCH, "RANK": "1.0"}, {}, "RANK: '1.0': should be a whole number"),
        ({**TORCH, "RANK": "٣"}, {}, "RANK: '٣': should be a whole number"),
        ({**TORCH, "WORLD_SIZE": "9" * 5000}, {}, "WORLD_SIZE: '9999999999"),
        ({**TORCH, "LOCAL_RANK": "x"}, {}, "LOCAL_RANK: 'x': should be a whole number"),
        ({**TORCH, "MASTER_PORT": ""}, {}, "MASTER_ADDR is set (to 10.0.0.1), but MASTER_PORT is not"),
        ({**TORCH, "MASTER_ADDR": ""}, {}, "MASTER_PORT is set (to 29500), but MASTER_ADDR is not"),
        ({**TORCH, "MASTER_PORT": "http"}, {}, "MASTER_ADDR and MASTER_PORT: '10.0.0.1:http': the port"),
        ({**TORCH, "MASTER_PORT": "0"}, {}, "MASTER_ADDR and MASTER_PORT: '10.0.0.1:0': a port must be between 1"),
        ({**TORCH, "MASTER_ADDR": "a b"}, {}, "MASTER_ADDR and MASTER_PORT: 'a b:29500': 'a b' cannot be a host name"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, {}, "RANK and WORLD_SIZE say who this is, but nothing says where the ranks"),
        (SLURM, {}, "SLURM_PROCID and SLURM_STEP_NUM_TASKS say who this is, but nothing says where the ranks meet"),
        (SLURM, {}, "or give --peers FILE"),
        (SLURM, {}, "MASTER_ADDR=$(scontrol show hostnames"),
        (OPEN_MPI, {}, "OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE say who this is, but nothing says where"),
        (BATCH, {}, "SLURM_NTASKS is 4, but this process was not started by srun (SLURM_STEP_NUM_TASKS is not set)"),
        (BATCH | MEETING, {"peers": "p"}, "write srun before the command, or start it with torchrun"),
        ({"SLURM_JOB_ID": "9", "SLURM_NTASKS": "4"}, {}, "nothing says which rank this is, as it was not started by"),
        ({"SLURM_PROCID": "1"}, {}, "SLURM_PROCID is set (to 1), but SLURM_STEP_NUM_TASKS is not"),
        ({"OMPI_COMM_WORLD_RANK": "1"}, {}, "OMPI_COMM_WORLD_RANK is set (to 1), but OMPI_COMM_WORLD_SIZE is not"),
        ({"PMI_RANK": "2", "PMI_SIZE": "2"}, {}, "PMI_RANK is 2, but PMI_SIZE is 2"),
        ({"PMIX_RANK": "0"}, {}, "PMIX_RANK is set (to 0), but RINGWIDE_SIZE is not"),
        ({"RINGWIDE_RANK": "0"}, {}, "RINGWIDE_RANK is set (to 0), but RINGWIDE_SIZE is not"),
        ({**TORCHRUN, "RINGWIDE_SIZE": "2"}, {}, "RINGWIDE_SIZE is set (to 2), but RINGWIDE_RANK is not"),
        ({"RINGWIDE_RANK": "0", "RINGWIDE_SIZE": "2"}, {}, "RINGWIDE_RANK and RINGWIDE_SIZE say who this is, but"),
        ({**OURS, "RINGWIDE_MASTER": "host"}, {}, "RINGWIDE_MASTER: 'host': it needs a host and a port"),
        ({**TORCHRUN, "TORCHELASTIC_RESTART_COUNT": "x"}, {}, "TORCHELASTIC_RESTART_COUNT: 'x': should be a whole"),
    ],
)
def test_half_or_wrong_environments_are_named(environ: dict[str, str], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        find_rank(environ, **options)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 450


@pytest.mark.parametrize(
    ("environ", "options", "line"),
    [
        (TORCHRUN, {}, "rank 1 of 4, from torchrun (RANK, WORLD_SIZE; meeting at 10.0.0.1:29500)"),
        (SLURM, {"peers": "p.txt"}, "rank 2 of 4, from Slurm (SLURM_PROCID, SLURM_STEP_NUM_TASKS; peers of p.txt)"),
        ({}, {"rank": 1, "peers": "p.txt"}, "rank 1, from the command line (--rank; peers of p.txt)"),
    ],
)
def test_one_line_says_what_was_used(environ: dict[str, str], options: dict[str, Any], line: str) -> None:
    assert str(find_rank(environ, **options)) == line


@pytest.mark.parametrize(
    ("environ", "run_id"),
    [
        ({}, ""),
        ({"RANK": "0", "WORLD_SIZE": "2"}, ""),
        ({"TORCHELASTIC_RUN_ID": "d3b0"}, "torchrun d3b0"),
        ({"TORCHELASTIC_RUN_ID": "d3b0", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}, "torchrun d3b0"),
        ({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}, "Slurm 7 0"),
        ({"SLURM_JOB_ID": "7"}, ""),  # a batch script, which has no ranks
        ({"PMIX_NAMESPACE": "prterun-host-12@1"}, "Open MPI prterun-host-12@1"),
    ],
)
def test_the_run_of_a_launcher_has_a_name(environ: dict[str, str], run_id: str) -> None:
    assert find_run_id(environ) == run_id
