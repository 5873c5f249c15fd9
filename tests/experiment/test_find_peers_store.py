"""The real store of torch, opened by rank 0 and reached by another, both in this process."""

import random
import socket

import pytest

from bootstrap.in_memory_store import on_every_thread
from ringwide.bootstrap.launcher_env import AssignedRank
from ringwide.bootstrap.peers import Address
from ringwide.bootstrap.rendezvous import LOOPBACK
from ringwide.errors import AddressError, JoinError, StartTimeout
from ringwide.experiment.find_peers import FoundPeers, below, find_at_store, free_ports, open_store

PATIENCE_SECONDS = 60.0


def assigned(rank: int, master: Address | None, *, hosted: bool = False) -> AssignedRank:
    return AssignedRank(rank, 2, "Slurm", ("SLURM_PROCID", "SLURM_NTASKS"), master=master, hosted=hosted)


@pytest.fixture
def free() -> Address:
    return Address(LOOPBACK, free_ports(1, random.Random())[0])


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_rank_0_opens_a_store_on_loopback_and_all_meet(free: Address, name: str) -> None:
    master = Address(name, free.port)

    def one_rank(rank: int) -> tuple[object, FoundPeers]:
        store = open_store(assigned(rank, master), PATIENCE_SECONDS)
        run = "a run" if rank == 0 else None
        return store, find_at_store(
            below(store, "x"), assigned(rank, master), protected=False, seconds=PATIENCE_SECONDS, run=run
        )

    found = on_every_thread(2, one_rank)
    assert not [each for each in found if isinstance(each, Exception)], found
    (_, first), (_, second) = found  # type: ignore[misc]
    assert first.peers == second.peers
    assert second.run == "a run"
    assert _listening_on(free.port) <= {"127.0.0.1", "::1"}
    for found in (first, second):
        found.listener.close()


def _listening_on(port: int) -> set[str]:
    """The local addresses with a socket that listens on the port, as the kernel lists them."""
    found = set()
    for path, family in (("/proc/net/tcp", socket.AF_INET), ("/proc/net/tcp6", socket.AF_INET6)):
        with open(path) as table:
            rows = [line.split() for line in list(table)[1:]]
        for local in (row[1] for row in rows if row[3] == "0A"):
            digits, _, hexadecimal = local.partition(":")
            if int(hexadecimal, 16) == port:
                words = [bytes.fromhex(digits[at : at + 8])[::-1] for at in range(0, len(digits), 8)]
                found.add(socket.inet_ntop(family, b"".join(words)))
    assert found
    return found


def test_a_store_that_is_never_opened_is_waited_for_by_name(free: Address) -> None:
    with pytest.raises(StartTimeout) as caught:
        open_store(assigned(1, free), 0)
    assert str(caught.value) == (
        "rank 1 timed out: it waited 0 s (start_timeout_seconds) for rank 0 "
        f"(to open the store at {free}; Connection refused)"
    )


def test_a_host_that_does_not_resolve_is_named() -> None:
    with pytest.raises(AddressError, match=r"no-such-host\.invalid:5000: the host name"):
        open_store(assigned(1, Address("no-such-host.invalid", 5000)), PATIENCE_SECONDS)


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server((LOOPBACK, 0)) as taken:
        master = Address(LOOPBACK, taken.getsockname()[1])
        with pytest.raises(AddressError, match=r"rank 0 cannot listen on .*: the port is in use"):
            open_store(assigned(0, master), PATIENCE_SECONDS)


def test_what_torch_raises_is_one_sentence() -> None:
    with socket.create_server(("0.0.0.0", 0)) as taken:
        master = Address("0.0.0.0", taken.getsockname()[1])  # where torch opens the socket itself
        with pytest.raises(JoinError) as caught:
            open_store(assigned(0, master), PATIENCE_SECONDS)
    assert str(caught.value).startswith(f"rank 0 cannot open the store at {master}, where ranks meet: ")
    assert "\n" not in str(caught.value)


def test_without_a_place_to_meet_there_is_no_store() -> None:
    with pytest.raises(JoinError, match="rank 0 does not know where the ranks meet"):
        open_store(assigned(0, None), PATIENCE_SECONDS)
