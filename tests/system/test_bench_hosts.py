"""Hosts with limited links: they are as slow as asked, and nothing of them stays behind."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from bench.hosts import Host, Hosts, HostsUnavailable, make_hosts

from bench import hosts as made

pytestmark = pytest.mark.system

MEGABIT = 1e6
RECEIVE = """
import socket, sys, time
server = socket.create_server((sys.argv[1], 29500))
print("ready", flush=True)
connection = server.accept()[0]
count = len(connection.recv(1))
started = time.perf_counter()
while data := connection.recv(1 << 16):
    count += len(data)
print(count, time.perf_counter() - started)
"""
SEND = """
import socket, sys
connection = socket.create_connection((sys.argv[1], 29500))
connection.sendall(bytes(int(sys.argv[2])))
"""


@pytest.fixture
def two_hosts() -> Iterator[Hosts]:
    try:
        with make_hosts(2, 50 * MEGABIT) as hosts:
            yield hosts
    except HostsUnavailable as reason:
        pytest.skip(str(reason))


def bits_per_second(sender: Host, receiver: Host, nbytes: int) -> float:
    listening = receiver.command([sys.executable, "-c", RECEIVE, receiver.address])
    with subprocess.Popen(listening, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            sending = sender.command([sys.executable, "-c", SEND, receiver.address, str(nbytes)])
            subprocess.run(sending, check=True, timeout=110)
            count, seconds = process.stdout.readline().split()
        finally:
            process.kill()
    assert int(count) == nbytes
    return nbytes * 8 / float(seconds)


def test_a_link_is_no_faster_than_asked_and_its_rate_can_be_changed(two_hosts: Hosts) -> None:
    first, second = two_hosts
    assert bits_per_second(first, second, 3_000_000) < 2 * 50 * MEGABIT
    two_hosts.set_rate(5 * MEGABIT)
    assert bits_per_second(second, first, 1_000_000) < 2 * 5 * MEGABIT


def test_nothing_stays_behind_after_an_exception(two_hosts: Hosts) -> None:
    before = made.namespaces()
    assert {host.namespace for host in two_hosts} < set(before)
    with suppress(KeyboardInterrupt), make_hosts(3, MEGABIT):
        assert len(made.namespaces()) == len(before) + 4  # three hosts and their switch
        raise KeyboardInterrupt
    assert made.namespaces() == before


def test_what_a_dead_process_left_behind_is_removed_and_what_a_living_one_has_is_not(two_hosts: Hosts) -> None:
    killed = "import os, signal; from bench.hosts import make_hosts\nwith make_hosts(1, 1e6): os.kill(os.getpid(), 9)"
    ran = subprocess.run([sys.executable, "-c", killed], check=False, timeout=110)
    assert ran.returncode == -9
    ours = {name for name in made.namespaces() if f"-{os.getpid()}-" in name}
    assert len(made.namespaces()) == len(ours) + 2
    made.remove_leftovers()
    assert set(made.namespaces()) == ours


def test_without_the_commands_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(HostsUnavailable, match="there is no command 'ip'"), make_hosts(1, MEGABIT):
        pytest.fail("made hosts without a command to make them")


def test_without_the_right_it_says_which(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    refuses = tmp_path / "ip"
    refuses.write_text('#!/bin/sh\n[ "$1 $2" = "netns list" ] || { echo "Operation not permitted" >&2; exit 1; }\n')
    refuses.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    wanted = "failed: Operation not permitted; it needs the right to make network namespaces"
    with pytest.raises(HostsUnavailable, match=wanted), make_hosts(1, MEGABIT):
        pytest.fail("made hosts without the right to")
