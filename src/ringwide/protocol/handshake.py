"""Messages of the handshake, and the comparison of how two ranks were started. `bootstrap` carries the bytes.

The dialer sends HELLO. The listener answers WELCOME, with a hello of its own, or REFUSED, with the difference. Either
side can find a difference, and both report the same `Difference`, each with its own value as `ours`. Where ranks share
a key, the messages of `key_proof` come first, and each message here carries a proof.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ringwide.errors import Disagreement, RemoteProtocolError
from ringwide.protocol.frame import MAGIC, NEWS_LIMIT_BYTES, VERSION, FrameKind, Header, news, sealed_frame, unpack

RANKS_LIMIT = 2**15
"""A segment of an all-reduce makes 2 (size - 1) hops, and the header has 16 bits for them."""
LANES_LIMIT = 2**8
_TLS_RECORDS = (b"\x15\x03", b"\x16\x03")  # an alert, a handshake
_HELLO = {"rank": int, "size": int, "lane": int, "peers": str, "settings": dict, "checksum": bool, "shares": bool}

Setting = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Hello:
    """A rank's description of itself. `lane` numbers the connections between the two ranks."""

    rank: int
    size: int
    lane: int
    peers: str  # all addresses in the order of ranks, one a line; or their digest where that is too long
    settings: Mapping[str, Setting]
    checksum: bool  # it asks for checksums on this connection
    shares: bool  # it offers shared memory for large payloads on this connection

    def body(self) -> bytes:
        return json.dumps(asdict(self)).encode()


@dataclass(frozen=True, slots=True)
class Difference:
    """A value that must be equal on both ranks and is not."""

    field: str
    dialer: Setting
    listener: Setting

    def body(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    def as_error(self, *, rank: int, peer: str, dialed: bool) -> Disagreement:
        ours, theirs = (self.dialer, self.listener) if dialed else (self.listener, self.dialer)
        # It may come from an unknown client, and is shown on terminals.
        field = self.field if self.field.isprintable() else ascii(self.field)
        return Disagreement(field=field, ours=ours, theirs=theirs, rank=rank, peer=peer)


def handshake_frame(kind: FrameKind, body: bytes) -> bytes:
    """A whole frame of a handshake. It is always sealed, as the two have not agreed on anything yet."""
    return sealed_frame(news(kind, body.decode()))


def differences(dialer: Hello, listener: Hello) -> Difference | None:
    """The first difference between two ranks in what must be equal. None: there is none."""
    if dialer.size != listener.size:
        return Difference("size of the ring (lines in the peers file)", dialer.size, listener.size)
    if dialer.peers != listener.peers:
        return _different_line(dialer.peers.splitlines(), listener.peers.splitlines())
    for key in sorted({*dialer.settings, *listener.settings}):
        if dialer.settings.get(key) != listener.settings.get(key):
            return Difference(key, dialer.settings.get(key), listener.settings.get(key))
    if dialer.rank == listener.rank:
        return Difference("rank (each rank must be started once)", dialer.rank, listener.rank)
    return None


def _different_line(dialer: list[str], listener: list[str]) -> Difference:
    for rank, (one, other) in enumerate(zip(dialer, listener, strict=False)):
        if one != other:
            return Difference(f"address of rank {rank} in the peers file", one, other)
    return Difference("number of lines in the peers file", len(dialer), len(listener))


def check_prefix(first_bytes: bytes) -> Difference | None:
    """Check magic and version, which come first in every version of the protocol. The sender counts as the dialer."""
    if first_bytes[:2] in _TLS_RECORDS:
        raise RemoteProtocolError("it speaks TLS: was it started with tls, and this rank without?")
    if int.from_bytes(first_bytes[:2], "little") != MAGIC:
        raise RemoteProtocolError(f"this is not a ringwide peer: its first bytes are {first_bytes[:2]!r}")
    if first_bytes[2] != VERSION:
        return Difference("protocol version", first_bytes[2], VERSION)
    return None


def read_header(buffer: bytes) -> Header:
    """The header of a handshake frame; any other kind of frame is refused."""
    header = unpack(buffer, limit_bytes=0, sealed=True)
    if header.kind not in (FrameKind.HELLO, FrameKind.WELCOME, FrameKind.REFUSED, FrameKind.CHALLENGE):
        raise RemoteProtocolError(f"a frame of kind {header.kind} before the handshake")
    return header


def read_hello(payload: bytes) -> Hello:
    """A `Hello` from untrusted bytes, or an error that says what is wrong with them."""
    fields = read_object(payload, _HELLO)
    settings = fields["settings"]
    if not all(isinstance(value, Setting) for value in settings.values()):
        raise RemoteProtocolError("a hello whose settings are not plain values")
    if not 0 <= fields["rank"] < fields["size"] <= RANKS_LIMIT or not 0 <= fields["lane"] <= LANES_LIMIT:
        raise RemoteProtocolError("a hello with an impossible rank, size or lane")
    return Hello(**fields)


def read_difference(payload: bytes) -> Difference:
    fields = read_object(payload, {"field": str, "dialer": object, "listener": object})
    if not isinstance(fields["dialer"], Setting) or not isinstance(fields["listener"], Setting):
        raise RemoteProtocolError("a refusal whose values are not plain")
    return Difference(**fields)


def read_object(payload: bytes, shape: Mapping[str, type]) -> dict[str, Any]:
    """One JSON object with exactly these fields, from untrusted bytes."""
    if len(payload) > NEWS_LIMIT_BYTES:
        raise RemoteProtocolError(f"a handshake of {len(payload)} bytes")
    try:
        fields = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"a handshake that is not JSON: {error}") from error
    if not isinstance(fields, dict) or fields.keys() != shape.keys():
        raise RemoteProtocolError("a handshake with other fields than " + ", ".join(shape))
    for key, kind in shape.items():
        if not isinstance(fields[key], kind) or (kind is int and isinstance(fields[key], bool)):
            raise RemoteProtocolError(f"a handshake whose {key} is not a {kind.__name__}")
    return fields
