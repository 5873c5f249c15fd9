import asyncio
import socket
from typing import Any

import numpy as np
import pytest

import ringwide
from bootstrap.in_memory_store import PATIENCE_SECONDS, BlindStore, MemoryStore, on_every_thread
from ringwide.bootstrap import rendezvous
from ringwide.bootstrap.rendezvous import LONGEST_BYTES, Found, find_peers
from ringwide.errors import AddressError, ConfigError, JoinError, RingwideError, StartTimeout


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> str:
    """An address that this machine has, and that passes for one beyond loopback."""
    monkeypatch.setattr("ringwide.bootstrap.listen.is_loopback", lambda host: host != "127.0.0.2")
    return "127.0.0.2"


def meet(store: Any, size: int, **settings: Any) -> list[Any]:
    """Settings that are lists are those of each rank."""

    def one_rank(rank: int) -> Found:
        own = {key: value[rank] if isinstance(value, list) else value for key, value in settings.items()}
        return find_peers(store, rank=rank, size=size, **{"protected": False, "timeout_seconds": 30, **own})

    return on_every_thread(size, one_rank)


def everyone_knows(found: list[Any], host: str) -> bool:
    where = [f"{host}:{one.listener.getsockname()[1]}" for one in found]
    for one in found:
        one.listener.close()
    return all(one.peers == where for one in found)


@pytest.mark.parametrize("kind", [BlindStore, MemoryStore])
@pytest.mark.parametrize("size", [1, 2, 5])
def test_ranks_on_one_machine_listen_on_loopback(kind: type[BlindStore], size: int) -> None:
    found = meet(kind(), size, host="192.0.2.1", towards="192.0.2.2")
    assert everyone_knows(found, "127.0.0.1")


async def test_what_was_found_is_what_join_takes() -> None:
    found = meet(MemoryStore(), 3)

    async def one_rank(rank: int) -> Any:
        async with ringwide.join(rank=rank, peers=found[rank].peers, listener=found[rank].listener) as ring:
            return await ring.allreduce(np.array([2.0**rank]), op="sum")

    async with asyncio.timeout(PATIENCE_SECONDS):
        totals = await asyncio.gather(*map(one_rank, range(3)))
    assert [total.tolist() for total in totals] == [[7.0]] * 3


def test_ranks_on_several_machines_listen_where_they_are_told(elsewhere: str) -> None:
    found = meet(MemoryStore(), 3, machine=["a", "a", "b"], host=elsewhere, protected=True)
    assert everyone_knows(found, elsewhere)


def test_an_address_is_found_by_the_way_to_the_store(elsewhere: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str | None] = []

    def towards(host: str | None, *, rank: int) -> str:
        asked.append(host)
        return elsewhere

    monkeypatch.setattr(rendezvous, "address_towards", towards)
    found = meet(MemoryStore(), 2, machine=["a", "b"], towards="the-store", protected=True)
    assert asked == ["the-store", "the-store"]
    assert everyone_knows(found, elsewhere)


# Somebody gives up


@pytest.mark.parametrize("protected", [[False, False, False], [True, False, True]])
@pytest.mark.parametrize("kind", [BlindStore, MemoryStore])
def test_without_protection_all_ranks_give_up(
    kind: type[BlindStore], protected: list[bool], elsewhere: str, all_sockets_closed: None
) -> None:
    errors = meet(kind(), 3, machine=["a", "b", "c"], host=elsewhere, protected=protected)
    for rank, error in enumerate(errors):
        assert type(error) is ConfigError
        guilty = rank if not protected[rank] else 1
        assert f"rank {guilty} would listen on 127.0.0.2:0, beyond loopback" in str(error)
        for cure in ("keygen", "RINGWIDE_KEY_FILE", "--insecure", "RINGWIDE_INSECURE"):
            assert cure in str(error)


@pytest.fixture
def all_sockets_closed(monkeypatch: pytest.MonkeyPatch) -> Any:
    opened: list[socket.socket] = []
    listen = rendezvous.listen

    def noted(*arguments: Any, **settings: Any) -> socket.socket:
        opened.append(listen(*arguments, **settings))
        return opened[-1]

    monkeypatch.setattr(rendezvous, "listen", noted)
    yield
    assert all(sock.fileno() == -1 for sock in opened)


@pytest.mark.parametrize(("host", "problem"), [("192.0.2.1", "rank 1 cannot listen on"), ("0.0.0.0", "name the addr")])
def test_an_address_that_will_not_do_ends_all_ranks(host: str, problem: str, all_sockets_closed: None) -> None:
    errors = meet(MemoryStore(), 3, machine=["a", "b", "c"], host=["127.0.0.1", host, "127.0.0.1"], protected=True)
    assert [type(error) for error in errors] == [JoinError, AddressError, JoinError]
    assert all(problem in str(error) for error in errors)


def test_rank_0_stays_until_the_others_know_why() -> None:
    """With its process the store may end."""
    store = MemoryStore()
    meet(store, 3, machine=["a", "b", "c"], host="0.0.0.0", protected=False)
    assert {f"ringwide/heard/{rank}" for rank in range(3)} <= store.values.keys()


# Somebody does not come


def test_those_who_never_came_are_named() -> None:
    store = MemoryStore()
    store.set("ringwide/machine/2", "a")
    with pytest.raises(StartTimeout) as caught:
        find_peers(store, rank=1, size=4, protected=False, timeout_seconds=0)
    assert str(caught.value) == (
        "rank 1 timed out: it waited 0 s (start_timeout_seconds) for rank 0 (not in the store), "
        "rank 3 (not in the store)"
    )


def test_the_timeout_of_a_store_names_the_rank_that_it_waited_for() -> None:
    with pytest.raises(
        StartTimeout, match=r"^rank 0 timed out: it waited .* s \(the timeout of the store\) for rank 1 \(not in"
    ):
        find_peers(BlindStore(seconds=0), rank=0, size=2, protected=False)


def test_a_store_that_fails_is_a_sentence() -> None:
    class Failing(MemoryStore):
        def set(self, key: str, value: str, /) -> None:
            raise RuntimeError("Connection was likely closed\nframe #0: <unknown function>")

    with pytest.raises(JoinError) as caught:
        find_peers(Failing(), rank=0, size=2, protected=False)
    assert str(caught.value) == (
        "rank 0 cannot use the store in which ranks find each other: Connection was likely closed"
    )


# Garbage in the store


@pytest.mark.parametrize(
    ("heading", "garbage"),
    [
        ("machine", b"x" * (LONGEST_BYTES + 1)),
        ("machine", b"\x00\xff"),
        ("address", b""),
        ("address", b"\x1b[2J:80"),
        ("address", b"host"),
        ("address", b"127.0.0.1:99999"),
        ("address", b"a" * 400 + b":80"),
        ("address", b"x" * 100_000),
        ("address", "пр:80\n".encode()),
    ],
)
def test_garbage_in_the_store_is_an_error_of_ours(heading: str, garbage: bytes, all_sockets_closed: None) -> None:
    store = MemoryStore()
    store.values |= {"ringwide/machine/1": b"a", "ringwide/address/1": b"127.0.0.1:5000"}
    store.values[f"ringwide/{heading}/1"] = garbage
    with pytest.raises(JoinError, match=r"rank 0 found .*in the store") as caught:
        find_peers(store, rank=0, size=2, protected=False, machine="a", timeout_seconds=30)
    assert len(str(caught.value)) < 400
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("elsewhere", ["192.0.2.7:5000", "[2001:db8::7]:5000", "localhost:5000", "0.0.0.0:5000"])
def test_without_a_key_ranks_of_one_machine_accept_loopback_addresses_only(
    elsewhere: str, all_sockets_closed: None
) -> None:
    """Whoever reaches the store could lead a rank to a listener of its own, and read the gradients sent there."""
    store = MemoryStore()
    store.values |= {"ringwide/machine/1": b"a", "ringwide/address/1": elsewhere.encode()}
    with pytest.raises(JoinError, match="should be a loopback address"):
        find_peers(store, rank=0, size=2, protected=False, machine="a", timeout_seconds=30)
    with find_peers(store, rank=0, size=2, protected=True, machine="a", timeout_seconds=30).listener as listener:
        assert listener.getsockname()[0] == "127.0.0.1"  # with a key, whoever listens there has to prove that it has it


def test_the_excuse_of_another_rank_is_cut_to_its_length() -> None:
    store = MemoryStore()
    store.values |= {"ringwide/machine/1": b"a", "ringwide/address/1": b"refused: " + b"y" * 900}
    store.values["ringwide/heard/1"] = b"yes"
    with pytest.raises(ConfigError) as caught:
        find_peers(store, rank=0, size=2, protected=False, machine="a", timeout_seconds=30)
    assert str(caught.value) == "y" * 900


def test_a_rank_beyond_the_size_is_refused() -> None:
    with pytest.raises(RingwideError, match="rank 2 is out of range"):
        find_peers(MemoryStore(), rank=2, size=2, protected=False)


# Which machine is this?


def test_a_machine_knows_itself_and_its_loopback() -> None:
    assert rendezvous.this_machine() == rendezvous.this_machine()
    assert len(rendezvous.this_machine()) == 32


@pytest.mark.parametrize("what", ["_network", "_text_of", "gethostname"])
def test_another_boot_name_or_network_is_another_machine(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    here = rendezvous.this_machine()
    owner = socket if what == "gethostname" else rendezvous
    monkeypatch.setattr(owner, what, lambda *_: "another")
    assert rendezvous.this_machine() != here


def test_loopback_is_no_address_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    routes = {"me": "127.0.1.1", "192.0.2.1": "10.0.0.7"}
    monkeypatch.setattr(rendezvous, "_source_of", routes.get)
    assert rendezvous.address_towards("me", rank=0) == "10.0.0.7"
    routes["192.0.2.1"] = "127.0.0.1"
    with pytest.raises(AddressError, match=r"rank 3 does not know its address: .* RINGWIDE_HOST"):
        rendezvous.address_towards("me", rank=3)


def test_the_kernel_knows_the_way_to_this_machine() -> None:
    assert rendezvous._source_of("127.0.0.1") == "127.0.0.1"
    assert rendezvous._source_of("no-such-host.invalid") is None
