"""Rendezvous through a key-value store: ranks that do not know each other learn where everybody listens.

Rules:
- Each rank opens its socket before it publishes the port, so nobody can take the port in between.
- Ranks that all share one machine and its network listen on loopback, where nobody else can connect.
- Beyond loopback the ring must be protected, or explicitly insecure. If one rank gives up, it publishes why, and all of
  them give up: nobody waits for a rank that will not come.
- The content of the store is not trusted: each value is an address, or an error. Without a key, ranks of one machine
  accept loopback addresses only: whoever can write to the store must not lead a rank, and its gradients, elsewhere.

A store serves one ring only. For several rings, give each its own prefix (`torch.distributed.PrefixStore`).
"""

import ipaddress
import logging
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Protocol, runtime_checkable

from ringwide.bootstrap.listen import is_loopback, listen
from ringwide.bootstrap.peers import Address, check_rank, parse_address
from ringwide.errors import AddressError, ConfigError, JoinError, RingwideError, StartTimeout

__all__: Sequence[str] = ["Found", "Store", "find_peers"]

logger = logging.getLogger("ringwide.bootstrap")

PREFIX = "ringwide/"
LONGEST_BYTES = 1024
REMIND_SECONDS = 3.0
_HEARD_SECONDS = 10.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.005, 0.1
LOOPBACK = "127.0.0.1"
_LONGEST_ADDRESS = 300
_REFUSED, _FAILED = "refused: ", "failed: "
_FAR_AWAY = ("192.0.2.1", "2001:db8::1")
"""Addresses that nobody has (RFC 5737, RFC 3849), so the default route leads there."""
_ANY_PORT = 9


class Store(Protocol):
    """Keys and values that all ranks see. `torch.distributed.Store` is one."""

    def set(self, key: str, value: str, /) -> object: ...

    def get(self, key: str, /) -> bytes:
        """Waits until the key is set. If that does not happen, it may raise any exception."""
        ...


@runtime_checkable
class CheckableStore(Protocol):
    """A store that can tell at once whether all of these keys are set, as those of torch can.

    With it, a wait ends after our own timeout or with Ctrl-C, and names all ranks that are missing.
    """

    def check(self, keys: list[str], /) -> bool: ...


class StoreBoard:
    """Lines of all ranks in a store: every rank writes one under each heading, and reads those of all."""

    def __init__(self, store: Store, *, rank: int, size: int, timeout_seconds: float) -> None:
        self._store, self._rank, self._ranks = store, rank, range(size)
        self._timeout_seconds = timeout_seconds

    def write(self, heading: str, line: str) -> None:
        try:
            self._store.set(_key(heading, self._rank), line)
        except Exception as error:  # a store may raise anything
            raise self._broken(error) from error

    def read(self, heading: str) -> list[str]:
        """The lines of all ranks, in order of rank, when all have written theirs."""
        if isinstance(self._store, CheckableStore):
            self._wait_for_all(self._store, heading)
        return [self.line(heading, rank) for rank in self._ranks]

    def linger_until_read(self) -> None:
        """Wait until all ranks have read the reason. With rank 0 the store itself may end, and with it the reason."""
        self.write("heard", "yes")
        if self._rank or not isinstance(self._store, CheckableStore):
            return
        until, everyone = time.monotonic() + _HEARD_SECONDS, [_key("heard", rank) for rank in self._ranks]
        try:
            while time.monotonic() < until and not self._store.check(everyone):
                time.sleep(_LONGEST_PAUSE)
        except Exception as error:  # the reason why this rank gives up matters more
            logger.debug("store error=%s", error)

    def _wait_for_all(self, store: CheckableStore, heading: str) -> None:
        everyone = [_key(heading, rank) for rank in self._ranks]
        began = time.monotonic()
        remind_at, pause = began + REMIND_SECONDS, _FIRST_PAUSE
        while not self._has(store, everyone):
            now = time.monotonic()
            if now - began >= self._timeout_seconds:
                raise self._too_late(self._missing(store, heading), self._timeout_seconds)
            if now >= remind_at:
                logger.warning("rank %d is waiting for %s", self._rank, ", ".join(self._missing(store, heading)))
                remind_at = now + REMIND_SECONDS
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _missing(self, store: CheckableStore, heading: str) -> list[str]:
        return [_absent(rank) for rank in self._ranks if not self._has(store, [_key(heading, rank)])]

    def _has(self, store: CheckableStore, keys: list[str]) -> bool:
        try:
            return store.check(keys)
        except Exception as error:
            raise self._broken(error) from error

    def line(self, heading: str, rank: int) -> str:
        """The line of one rank, when it is there."""
        began = time.monotonic()
        try:
            value = self._store.get(_key(heading, rank))
        except Exception as error:
            if _is_timeout(error):
                seconds = round(time.monotonic() - began, 1)
                raise self._too_late([_absent(rank)], seconds, limit="the timeout of the store") from error
            raise self._broken(error) from error
        return self._text(value, _key(heading, rank))

    def _text(self, value: bytes, key: str) -> str:
        if len(value) > LONGEST_BYTES:
            raise JoinError(f"rank {self._rank} found {len(value)} bytes as {key} in the store, and not a line of text")
        text = value.decode("utf-8", errors="replace")
        if not text.isprintable():
            raise JoinError(f"rank {self._rank} found {text[:40]!r} as {key} in the store, and not a line of text")
        return text

    def _too_late(self, missing: list[str], seconds: float, limit: str = "start_timeout_seconds") -> StartTimeout:
        return StartTimeout(rank=self._rank, missing=missing, seconds=seconds, limit=limit)

    def _broken(self, error: Exception) -> JoinError:
        reason = str(error).partition("\n")[0] or type(error).__name__
        return JoinError(f"rank {self._rank} cannot use the store in which ranks find each other: {reason}")


def _key(heading: str, rank: int) -> str:
    return f"{PREFIX}{heading}/{rank}"


def _absent(rank: int) -> str:
    return f"rank {rank} (not in the store)"


def _is_timeout(error: Exception) -> bool:
    """The stores of torch report a timeout only in the text of an error."""
    text = str(error).lower()
    return isinstance(error, TimeoutError) or "wait timeout" in text or "timeout waiting" in text


@dataclass(frozen=True, slots=True)
class Found:
    """The addresses of all ranks, in order, and the listening socket of this rank, for `ringwide.join`."""

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
    """Find all ranks. Blocks until every rank has published where it listens.

    If ranks are on several machines, this one listens on `host`, or by default on the address from which the host
    `towards` is reached. `protected`: there is a key or TLS, or the ring is explicitly insecure.
    """
    check_rank(rank, size, "the size of the ring")
    board = StoreBoard(store, rank=rank, size=size, timeout_seconds=timeout_seconds)
    board.write("machine", machine or this_machine())
    together = len(set(board.read("machine"))) == 1
    try:
        listener = _listener(rank, LOOPBACK if together else host, towards, protected)
    except RingwideError as error:
        board.write("address", _failure_line(error))
        board.linger_until_read()
        raise
    try:
        board.write("address", _address_of(listener))
        return Found(_addresses(board, rank, only_loopback=together and not protected), listener)
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


def _failure_line(error: RingwideError) -> str:
    why = _REFUSED if isinstance(error, ConfigError) else _FAILED
    return f"{why}{error}".encode()[:LONGEST_BYTES].decode(errors="ignore")


def _addresses(board: StoreBoard, rank: int, *, only_loopback: bool) -> list[str]:
    lines = board.read("address")
    for line in lines:
        if line.startswith((_REFUSED, _FAILED)):
            board.linger_until_read()
            raise _failure_of(line)
    found = [_parsed(line, peer, rank) for peer, line in enumerate(lines)]
    for peer, address in enumerate(found):
        if only_loopback and not _is_numeric_loopback(address.host):
            raise JoinError(
                f"rank {rank} found in the store, for rank {peer}: {address}: all ranks are on this machine and have no"
                " key, so it should be a loopback address; somebody else may have written to the store"
            )
    return [str(address) for address in found]


def _is_numeric_loopback(host: str) -> bool:
    """Whether a rank could have published it. A name is none: it may lead anywhere."""
    try:
        return is_loopback(host)
    except ValueError:
        return False


def _failure_of(line: str) -> RingwideError:
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


# -- this machine, and its address


def this_machine() -> str:
    """A digest that two processes share if they share 127.0.0.1: same boot, same name, same network."""
    boot = _text_of(Path("/proc/sys/kernel/random/boot_id"))
    return blake2b("\n".join([boot, socket.gethostname(), _network()]).encode(), digest_size=16).hexdigest()


def address_towards(host: str | None, *, rank: int) -> str:
    """The address of this machine from which `host` is reached, or else that of the default route.

    A machine's own name often resolves to loopback (127.0.1.1 in /etc/hosts), where no other machine finds it.
    """
    for target in (*([host] if host else []), *_FAR_AWAY):
        found = _source_of(target)
        if found is not None and not is_loopback(found):
            return found
    raise AddressError(
        f"rank {rank} does not know its address",
        "ranks are on several machines, and this one has no route to another; name its address with RINGWIDE_HOST",
    )


def _source_of(target: str) -> str | None:
    """Local address of the route to `target`. Connecting a datagram socket sends nothing."""
    try:
        family, kind, proto, _, sockaddr = socket.getaddrinfo(target, _ANY_PORT, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, proto) as probe:
            probe.connect(sockaddr)
            return str(probe.getsockname()[0])
    except (OSError, UnicodeError):
        return None


def _network() -> str:
    """The network namespace: each has a loopback of its own."""
    try:
        return os.readlink("/proc/self/ns/net")
    except OSError:
        return ""


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""
