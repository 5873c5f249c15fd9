"""Peers file: one `host:port` for each rank, in order of rank.

    peers.txt                           peers.yaml
    # the two on the desk               - 192.168.0.10:29500
    192.168.0.10:29500   # rank 0       - "[fe80::1%eth0]:29500"
    [fe80::1%eth0]:29500 # rank 1

A list of strings in the program works as well. Every mistake is a `ConfigError` that cites the place, what was found
there, and what would be right.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv6Address
from pathlib import Path

from ringwide.errors import ConfigError

EXAMPLE = "192.168.0.10:29500 or [::1]:29500"
NOT_IN_A_HOST = frozenset(" \t/@,;'\"[]")


@dataclass(frozen=True, slots=True)
class Address:
    """The address on which a peer listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class PeerEntry:
    """One address as it was written, and where."""

    text: str
    place: str


def load_peers(peers: str | os.PathLike[str] | Sequence[str]) -> tuple[Address, ...]:
    """The address of every rank, from a list of `"host:port"`, a text file or a YAML file."""
    if isinstance(peers, str | os.PathLike):
        return _addresses(_entries_of_file(Path(peers)), source=str(Path(peers)))
    return _addresses(_entries_of_list(peers), source="peers")


def parse_address(text: str, place: str) -> Address:
    host, colon, port = text.rpartition(":")
    if not colon or not host or host.startswith("[") != host.endswith("]"):
        raise _mistake(place, text, "it needs a host and a port")
    if host.startswith("["):
        return Address(_ipv6(host[1:-1], text, place), _port(port, text, place))
    if not NOT_IN_A_HOST.isdisjoint(host):
        raise _mistake(place, text, f"{host!r} cannot be a host name")
    if ":" in host:
        raise _mistake(place, text, "an IPv6 address needs brackets")
    return Address(host, _port(port, text, place))


def check_rank(rank: int, size: int, where: str) -> None:
    """Refuse a rank that is out of range. `where` names the source of the size, usually the peers file."""
    if not hasattr(rank, "__index__"):
        raise ConfigError(f"rank {rank!r} is a {type(rank).__name__}; it must be an integer")
    if not 0 <= rank < size:
        allowed = "the only rank is 0" if size == 1 else f"ranks go from 0 to {size - 1}"
        peers = "1 peer" if size == 1 else f"{size} peers"
        raise ConfigError(f"rank {rank} is out of range: {where} names {peers}, so {allowed}")


def _addresses(entries: Iterable[PeerEntry], source: str) -> tuple[Address, ...]:
    first_place: dict[Address, str] = {}
    for entry in entries:
        address = parse_address(entry.text, entry.place)
        if address in first_place:
            raise _mistake(entry.place, entry.text, f"{first_place[address]} has it already; each rank needs its own")
        first_place[address] = entry.place
    if not first_place:
        raise ConfigError(f"{source}: no peers in it; write one host:port for each rank, such as {EXAMPLE}")
    return tuple(first_place)


def _entries_of_list(peers: Sequence[str]) -> Iterator[PeerEntry]:
    for index, text in enumerate(peers):
        if not isinstance(text, str):
            raise _mistake(f"peers[{index}]", text, "each peer is a string")
        yield PeerEntry(text.strip(), f"peers[{index}]")


def _entries_of_file(path: Path) -> Iterator[PeerEntry]:
    text = _read(path)
    return _entries_of_yaml(text, path) if path.suffix in {".yaml", ".yml"} else _entries_of_lines(text, path)


def _entries_of_lines(text: str, path: Path) -> Iterator[PeerEntry]:
    for number, line in enumerate(text.splitlines(), start=1):
        if written := line.partition("#")[0].strip():
            yield PeerEntry(written, f"{path}:{number}")


def _entries_of_yaml(text: str, path: Path) -> Iterator[PeerEntry]:
    # Composed, not loaded: nodes know their lines, and 10:30 stays text where YAML 1.1 would read 630.
    import yaml

    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or error
        raise ConfigError(f'{path}{line}: not YAML: {problem}; quote addresses in brackets, - "[::1]:29500"') from error
    if root is None:
        return
    if not isinstance(root, yaml.SequenceNode):
        raise ConfigError(f"{path}:{root.start_mark.line + 1}: not a list; write one '- host:port' for each rank")
    for node in root.value:
        place = f"{path}:{node.start_mark.line + 1}"
        if not isinstance(node, yaml.ScalarNode):
            raise ConfigError(f'{place}: not text; each peer is one host:port, IPv6 quoted as in - "[::1]:29500"')
        yield PeerEntry(node.value.strip(), place)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise ConfigError(
            f"{path}: there is no such peers file; write one host:port for each rank into it, or pass a list of them"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"{path}: the peers file cannot be read: {reason}") from error


def _ipv6(host: str, text: str, place: str) -> str:
    try:
        # The shortest spelling, so that [0::1] and [::1] are seen to be the same peer.
        return str(IPv6Address(host))
    except ValueError as error:
        raise _mistake(place, text, f"{host!r} is not an IPv6 address; only those have brackets") from error


def _port(digits: str, text: str, place: str) -> int:
    if not digits.isascii() or not digits.isdigit():
        raise _mistake(place, text, "the port after the last colon must be a number")
    # Checked before int(), which refuses very long numbers with an error of its own.
    if len(digits) > 9 or not 1 <= int(digits) <= 65535:
        raise _mistake(place, text, "a port must be between 1 and 65535")
    return int(digits)


def _mistake(place: str, text: object, problem: str) -> ConfigError:
    return ConfigError(f"{place}: {text!r}: {problem}; write host:port, such as {EXAMPLE}")
