import random
import socket
from pathlib import Path

import pytest

from ringwide.bootstrap.peers import load_peers
from ringwide.bootstrap.rendezvous import LOOPBACK
from ringwide.errors import ConfigError
from ringwide.experiment import find_peers
from ringwide.experiment.find_peers import free_ports, write_peers


def test_ports_differ_and_stay_below_those_of_outgoing_connections() -> None:
    found = free_ports(8, random.Random(1))
    assert len(set(found)) == 8
    assert max(found) < int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])


def test_a_port_in_use_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind((LOOPBACK, 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr(find_peers, "FIRST_PORT", port)
        monkeypatch.setattr(find_peers, "_first_outgoing_port", lambda: 0)
        assert port not in free_ports(20, random.Random(1))
        assert not find_peers._is_free(port)


def test_too_few_free_ports_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find_peers, "_is_free", lambda port: port == 10_007)
    monkeypatch.setattr(find_peers, "TRIES_PER_PORT", 20_000)
    monkeypatch.setattr(find_peers, "_first_outgoing_port", lambda: 0)
    with pytest.raises(ConfigError, match="nodes: 2: found only 1 free ports"):
        free_ports(2, random.Random(1))


def test_the_peers_file_is_one_that_nodes_can_read(tmp_path: Path) -> None:
    write_peers(tmp_path / "peers.txt", [10_001, 10_005])
    assert [str(address) for address in load_peers(tmp_path / "peers.txt")] == ["127.0.0.1:10001", "127.0.0.1:10005"]
