"""Ranks that know a store, but not each other, find out where everybody listens.

Rules:
- Each rank opens its socket first and tells the port then: nobody can take it in between.
- Ranks that all share one machine and its network listen on loopback, where nobody else can connect.
- Beyond loopback the ring must be protected, or said to need no protection. If one rank gives up, it tells the others
  why, and all of them give up: nobody waits for a rank that will not come.
- What is in the store is not trusted: it is an address, or an error.

A store serves for one ring only; for several, give each its own prefix (`torch.distributed.PrefixStore`).
"""

import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from ringwide.errors import AddressError, ConfigError, JoinError, RingwideError
from ringwide.membership.listening import listen
from ringwide.membership.machine import address_towards, this_machine
from ringwide.membership.peers import Address, check_rank, parse_address
from ringwide.membership.store import LONGEST_BYTES, Board, Store

LOOPBACK = "127.0.0.1"
_LONGEST_ADDRESS = 300
_REFUSED, _FAILED = "refused: ", "failed: "


@dataclass(frozen=True, slots=True)
class Found:
    """Where everybody listens, in order of rank, and the socket of this rank, for `ringwide.join`."""

    peers: list[str]
    listener: socket.socket


def find_peers(
    store: Store,
    *,
    rank: int,
    size: int,
    host: str | None = None,
    towards: str | None = None,
    protected: bool,
    timeout_seconds: float = 300.0,
    machine: str | None = None,
) -> Found:
    """Blocks until every rank has told where it listens.

    Only if ranks are on several machines does it matter that this one listens on `host`, or by default on the address
    from which the host `towards` is reached. `protected`: there is a key or TLS, or everybody may join (insecure).
    """
    check_rank(rank, size, "the size of the ring")
    board = Board(store, rank=rank, size=size, timeout_seconds=timeout_seconds)
    board.write("machine", machine or this_machine())
    together = len(set(board.read("machine"))) == 1
    try:
        listener = _listener(rank, LOOPBACK if together else host, towards, protected)
    except RingwideError as error:
        board.write("address", _excuse(error))
        board.let_others_hear()
        raise
    try:
        board.write("address", _address_of(listener))
        return Found(_addresses(board, rank), listener)
    except BaseException:
        listener.close()
        raise


def _listener(rank: int, host: str | None, towards: str | None, protected: bool) -> socket.socket:
    host = host or address_towards(towards, rank=rank)
    listener = listen(Address(host, 0), rank=rank, beyond_loopback=protected)
    if ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_unspecified:
        listener.close()
        raise AddressError(f"rank {rank} cannot be found at {host}", "name the address under which others reach it")
    return listener


def _address_of(listener: socket.socket) -> str:
    return str(Address(*listener.getsockname()[:2]))


def _excuse(error: RingwideError) -> str:
    why = _REFUSED if isinstance(error, ConfigError) else _FAILED
    return f"{why}{error}".encode()[:LONGEST_BYTES].decode(errors="ignore")


def _addresses(board: Board, rank: int) -> list[str]:
    lines = board.read("address")
    for line in lines:
        if line.startswith((_REFUSED, _FAILED)):
            board.let_others_hear()
            raise _gave_up(line)
    return [str(_parsed(line, peer, rank)) for peer, line in enumerate(lines)]


def _gave_up(line: str) -> RingwideError:
    if line.startswith(_REFUSED):
        return ConfigError(line.removeprefix(_REFUSED))
    return JoinError(line.removeprefix(_FAILED))


def _parsed(line: str, peer: int, rank: int) -> Address:
    try:
        if len(line) > _LONGEST_ADDRESS:
            raise ConfigError(f"{line[:40]!r}... is too long for an address")
        return parse_address(line, "address")
    except ConfigError as error:
        raise JoinError(f"rank {rank} found in the store, for rank {peer}: {error}") from error


__all__: Sequence[str] = ["Found", "Store", "find_peers"]
