import select
import socket
from collections.abc import Iterator

import pytest

from ringwide.bootstrap.listen import adopted, listen
from ringwide.bootstrap.peers import Address
from ringwide.errors import AddressError, ConfigError


@pytest.fixture
def taken() -> Iterator[Address]:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen(1)
        yield Address("127.0.0.1", sock.getsockname()[1])


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.0.0.2"])
def test_a_listening_socket_accepts(host: str) -> None:
    with listen(Address(host, 0), rank=0, beyond_loopback=False) as listener:
        assert listener.getblocking() is False
        with socket.create_connection(listener.getsockname()[:2]):
            pass


@pytest.mark.skipif(not hasattr(socket, "TCP_DEFER_ACCEPT"), reason="only Linux keeps silent connections to itself")
@pytest.mark.parametrize("own", [True, False])
def test_who_connects_and_says_nothing_does_not_wake_a_rank(own: bool) -> None:
    """The silent one came first, and yet the first connection to be accepted is the other."""
    opener = listen(Address("127.0.0.1", 0), rank=0, beyond_loopback=False) if own else opened()
    with adopted(opener, rank=0, beyond_loopback=False) if not own else opener as listener:
        address = listener.getsockname()
        with socket.create_connection(address), socket.create_connection(address) as speaker:
            speaker.send(b"RW")
            select.select([listener], [], [], 10)
            accepted, there = listener.accept()
            accepted.close()
            assert there == speaker.getsockname()
            with pytest.raises(BlockingIOError):
                listener.accept()


def test_a_system_that_cannot_keep_silent_connections_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(socket, "TCP_DEFER_ACCEPT", raising=False)
    listen(Address("127.0.0.1", 0), rank=0, beyond_loopback=False).close()


def test_a_port_in_use_names_rank_and_address(taken: Address) -> None:
    with pytest.raises(AddressError) as caught:
        listen(taken, rank=3, beyond_loopback=False)
    assert str(caught.value) == (
        f"rank 3 cannot listen on {taken}: the port is in use; is another process running as rank 3?"
    )


def test_the_port_of_a_run_that_just_ended_is_free() -> None:
    first = listen(Address("127.0.0.1", 0), rank=0, beyond_loopback=False)
    address = Address("127.0.0.1", first.getsockname()[1])
    dialer = socket.create_connection(first.getsockname())
    dialer.send(b"RW")  # else the kernel keeps it to itself for a while
    first.setblocking(True)
    accepted, _ = first.accept()
    accepted.close()  # the side that closes first keeps the port for a minute
    dialer.close()
    first.close()
    listen(address, rank=0, beyond_loopback=False).close()


def test_a_name_that_does_not_resolve_is_named() -> None:
    with pytest.raises(
        AddressError, match=r"^no-such-host\.invalid:5000: the host name 'no-such-host\.invalid' does not"
    ):
        listen(Address("no-such-host.invalid", 5000), rank=0, beyond_loopback=False)


def test_an_address_of_another_machine_asks_whether_the_rank_is_right() -> None:
    with pytest.raises(AddressError, match="this machine does not have that address; is the rank right"):
        listen(Address("192.0.2.1", 5000), rank=0, beyond_loopback=True)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1"])
def test_listening_beyond_loopback_is_refused_before_a_socket_is_opened(host: str) -> None:
    with pytest.raises(ConfigError, match=rf"rank 1 would listen on {host}:5000, beyond loopback") as caught:
        listen(Address(host, 5000), rank=1, beyond_loopback=False)
    assert "insecure: true" in str(caught.value)


def test_listening_beyond_loopback_is_allowed_when_asked_for() -> None:
    with listen(Address("0.0.0.0", 0), rank=0, beyond_loopback=True) as listener:
        assert listener.getsockname()[0] == "0.0.0.0"


# A socket that somebody else has opened


def opened(host: str = "127.0.0.1") -> socket.socket:
    return socket.create_server((host, 0))


def test_a_listener_from_elsewhere_is_made_ready_for_the_event_loop() -> None:
    with opened() as listener:
        assert adopted(listener, rank=0, beyond_loopback=False) is listener
        assert listener.getblocking() is False


def test_a_listener_from_elsewhere_is_refused_beyond_loopback_as_well() -> None:
    with opened("0.0.0.0") as listener:
        with pytest.raises(ConfigError, match=r"rank 1 would listen on 0\.0\.0\.0:\d+, beyond loopback"):
            adopted(listener, rank=1, beyond_loopback=False)
        assert adopted(listener, rank=1, beyond_loopback=True) is listener


def test_a_socket_that_does_not_listen_is_no_listener() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        with pytest.raises(ConfigError, match=r"rank 2: the listener is not a TCP socket that listens; bind it"):
            adopted(sock, rank=2, beyond_loopback=False)
    with socket.socket(type=socket.SOCK_DGRAM) as datagrams, pytest.raises(ConfigError, match="is not a TCP socket"):
        adopted(datagrams, rank=2, beyond_loopback=False)


def test_a_listener_that_was_closed_is_named() -> None:
    listener = opened()
    listener.close()
    with pytest.raises(ConfigError, match=r"rank 2: the listener is closed; each ring needs"):
        adopted(listener, rank=2, beyond_loopback=False)
