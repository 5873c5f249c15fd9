"""Handshake of two ranks on one connection, with a key and without, up to a wire that is ready for a lane.

Rules:
- A rank that has a key ignores everything that is not proven, and sends nothing to a client that does not ask for a
  proof.
- Both ranks learn what they disagree on, with both values. A client without the key learns nothing.
"""

import errno
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

from ringwide.bootstrap.peers import Address
from ringwide.bootstrap.protection import Protection
from ringwide.bootstrap.unix_sockets import is_unix
from ringwide.bootstrap.untrusted_connection import (
    HandshakeFrame,
    HungUp,
    OtherVersion,
    UntrustedConnection,
    until_readable,
)
from ringwide.errors import ConfigError, RemoteProtocolError
from ringwide.protocol.frame import FrameKind
from ringwide.protocol.handshake import (
    Difference,
    Hello,
    Setting,
    differences,
    handshake_frame,
    read_difference,
    read_hello,
)
from ringwide.protocol.key_proof import (
    WITHOUT_TLS,
    Certificates,
    Challenge,
    Secret,
    Statement,
    Transcript,
    begin,
    choose_key,
    find_prover,
    proven_frame,
    read_answer,
    read_challenge,
    read_proven,
    tags_of,
)
from ringwide.transport.aead_wire import EncryptedWire, KeyExchange
from ringwide.transport.shm_arena import ArenaReader, ArenaShape, ArenaWriter
from ringwide.transport.shm_lane import SharedWire
from ringwide.transport.tls import TlsWire
from ringwide.transport.wire import Wire

_MARKER = b"\0"
_NAMES_SHOWN = 4
_DESCRIPTORS = 2  # the memory and its eventfd


@cache
def can_share_memory() -> bool:
    """Whether this system has memory whose descriptor can be passed. Not every system does, or allows it."""
    try:
        ArenaWriter(ArenaShape(1, 1)).close()
    except AttributeError:
        return False
    except OSError as error:
        return error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # a shortage now, which does not decide it
    return True


async def exchange_memory(channel: UntrustedConnection, shape: ArenaShape) -> SharedWire:
    """Exchange arenas, after both sides have agreed to. The descriptors travel with a byte of their own."""
    outgoing, sock = ArenaWriter(shape), channel.wire.socket
    try:
        socket.send_fds(sock, [_MARKER], outgoing.files)  # the kernel has room: everything before it was answered
        outgoing.handed_over()
        return SharedWire(sock, outgoing, ArenaReader(shape, *await _receive_descriptors(sock)))
    except BaseException:
        outgoing.close()
        raise


async def _receive_descriptors(sock: socket.socket) -> list[int]:
    while True:
        try:
            data, files, flags, _ = socket.recv_fds(sock, len(_MARKER), _DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
            break
        except (BlockingIOError, InterruptedError):
            await until_readable(sock)
    if data == _MARKER and len(files) == _DESCRIPTORS and not flags & socket.MSG_CTRUNC:
        return files
    for file in files:
        os.close(file)
    if not data:
        raise HungUp("the connection ended where memory was due")
    raise RemoteProtocolError("it shares something other than memory and an eventfd")


ObjectTo = Callable[[Hello], Difference | None]
"""A listener's objection to a rank that was started like itself: it may have joined already."""


class Unproven(RemoteProtocolError):
    """The other end has not proven that it has our key."""


@dataclass(frozen=True, slots=True)
class HandshakeTerms:
    """One rank's input to every handshake."""

    rank: int
    size: int
    peers: str
    settings: Mapping[str, Setting]
    protection: Protection
    shape_for: Callable[[int], ArenaShape | None] = lambda _: None
    """Shape of the shared memory of a lane to a rank on this machine. None: it has none."""

    def __post_init__(self) -> None:
        names = None if self.protection.tls is None else self.protection.tls.names
        if names is not None and len(names) != self.size:
            raise ConfigError(
                f"tls.names has {len(names)} names, but the ring has {self.size} ranks: give one for each"
            )

    def hello(self, lane: int, channel: UntrustedConnection) -> Hello:
        settings, checksum = {**self.settings, **self._protection_settings()}, self._wants_checksum(channel)
        shares = not checksum and self._shares(lane, channel)
        return Hello(self.rank, self.size, lane, self.peers, settings, checksum, shares)

    def _shares(self, lane: int, channel: UntrustedConnection) -> bool:
        """Whether to offer shared memory. Not where the user asked for encryption."""
        if self.shape_for(lane) is None or not is_unix(channel.wire.socket):
            return False
        return channel.wire.plain and not self.protection.encrypt and can_share_memory()

    def _protection_settings(self) -> Mapping[str, Setting]:
        protection = self.protection
        return {"encrypt": protection.encrypt, "tls": protection.tls is not None, "run_id": protection.run_id}

    def _wants_checksum(self, channel: UntrustedConnection) -> bool:
        if self.protection.checksum is not None:
            return self.protection.checksum
        return channel.wire.plain and not self.protection.encrypt and not channel.same_host

    def certificates(self, channel: UntrustedConnection, *, dialed: bool) -> Certificates:
        """Both certificates, as this side has seen them."""
        tls, wire = self.protection.tls, channel.wire
        if tls is None:
            return WITHOUT_TLS
        if not isinstance(wire, TlsWire):
            raise Unproven("it does not speak TLS")
        ours, theirs = tls.certificate, wire.peer_certificate
        return Certificates(ours, theirs) if dialed else Certificates(theirs, ours)

    def check_name(self, channel: UntrustedConnection, rank: int) -> None:
        """Refuse a certificate that is in order, but not of this rank."""
        tls, wire = self.protection.tls, channel.wire
        if tls is None or tls.names is None:
            return
        due = tls.names[rank] if rank < len(tls.names) else None
        names = wire.peer_names if isinstance(wire, TlsWire) else []
        if due is None or due.lower() not in [name.lower() for name in names]:
            shown = ascii(", ".join(names[:_NAMES_SHOWN])) if names else "no name"
            raise RemoteProtocolError(f"its certificate is for {shown}, but that of rank {rank} must be for {due!r}")

    def open_transcript(
        self, secret: Secret, challenge: bytes, listener: int, certificates: Certificates
    ) -> Transcript:
        run_id = self.protection.run_id
        return begin(secret, run_id=run_id, challenge=challenge, listener=listener, certificates=certificates)


class Handshaken(NamedTuple):
    """Result of a successful handshake: the wire is ready for this lane."""

    peer: int
    lane: int
    wire: Wire
    sealed: bool


class Refused(NamedTuple):
    """Result of a handshake of two ranks that were not started alike. Both know."""

    peer: str
    difference: Difference


# -- the dialer


async def initiate(
    channel: UntrustedConnection, terms: HandshakeTerms, *, peer: int, address: Address, lane: int, nonce: bytes
) -> Handshaken | Refused:
    """Do the dialer's handshake with the expected `peer`. `nonce` must be fresh and random."""
    terms.check_name(channel, peer)
    mine, transcript = terms.hello(lane, channel), None
    if terms.protection.secrets:
        transcript = await _ask_for_proof(channel, terms, peer, lane, nonce)
    transcript = await _send(channel, FrameKind.HELLO, mine.body(), transcript)
    try:
        received = await channel.receive()
    except OtherVersion as other:
        return Refused(f"rank {peer}", _swapped(other.difference, transcript, other))
    body, transcript = _verified(received, (FrameKind.WELCOME, FrameKind.REFUSED), transcript)
    if received.kind == FrameKind.REFUSED:
        return Refused(f"rank {peer}", read_difference(body))
    theirs = read_hello(body)
    difference = differences(dialer=mine, listener=theirs)
    if theirs.rank != peer:
        difference = Difference(f"rank at {address} in the peers file", peer, theirs.rank)
    if difference is not None:
        return Refused(f"rank {peer}", difference)
    return await _finish(channel, terms, mine, theirs, transcript, dialed=True)


def _swapped(difference: Difference, transcript: Transcript | None, error: OtherVersion) -> Difference:
    """The difference of versions with the sides swapped. It takes the sender for the dialer, but we are the dialer."""
    if transcript is not None:
        raise error
    return Difference(difference.field, difference.listener, difference.dialer)


async def _ask_for_proof(
    channel: UntrustedConnection, terms: HandshakeTerms, peer: int, lane: int, nonce: bytes
) -> Transcript:
    secrets, certificates = terms.protection.secrets, terms.certificates(channel, dialed=True)
    exchange = KeyExchange() if terms.protection.encrypt else None
    ephemeral = "" if exchange is None else exchange.public.hex()
    challenge = Challenge(terms.rank, terms.size, lane, nonce.hex(), tags_of(secrets, nonce.hex()), ephemeral).body()
    await channel.send(handshake_frame(FrameKind.CHALLENGE, challenge))
    received = await channel.receive()
    if received.kind != FrameKind.CHALLENGE:
        raise Unproven("it does not prove that it has our key: was it started without key_file?")
    answer, proof = read_proven(received.body)
    for secret in secrets:  # the listener has chosen one of them
        transcript = terms.open_transcript(secret, challenge, peer, certificates).after(Statement.CHALLENGE, answer)
        if transcript.accepts(proof):
            return _exchanged(transcript, exchange, read_answer(answer))
    # Nothing more is sent to it. But a rank of this ring at the address of another is worth an error that says so.
    for secret in secrets:
        opened = [terms.open_transcript(secret, challenge, rank, certificates) for rank in range(terms.size)]
        if (other := find_prover(opened, answer, proof)) is not None:
            raise Unproven(f"it proves to be rank {other}: is the peers file right, and was each rank started once?")
    raise Unproven("it does not prove that it has our key: was it started with another key_file or run_id?")


# -- the listener


async def respond(
    channel: UntrustedConnection, terms: HandshakeTerms, *, object_to: ObjectTo, nonce: bytes
) -> Handshaken | Refused:
    """Do the listener's handshake. `nonce` must be fresh and random."""
    if not terms.protection.secrets:
        return await _respond_without_key(channel, terms, object_to)
    return await _respond_with_key(channel, terms, object_to, nonce)


async def _respond_without_key(
    channel: UntrustedConnection, terms: HandshakeTerms, object_to: ObjectTo
) -> Handshaken | Refused:
    try:
        received = await channel.receive()
    except OtherVersion as other:
        return await _refuse(channel, "a peer", other.difference, None)
    if received.kind == FrameKind.CHALLENGE:
        peer = f"rank {read_challenge(received.body).rank}"
        return await _refuse(channel, peer, Difference("key_file", "a key", "no key"), None)
    body, _ = _verified(received, (FrameKind.HELLO,), None)
    return await _admit(channel, terms, object_to, read_hello(body), None)


async def _respond_with_key(
    channel: UntrustedConnection, terms: HandshakeTerms, object_to: ObjectTo, nonce: bytes
) -> Handshaken | Refused:
    received = await channel.receive()
    if received.kind != FrameKind.CHALLENGE:
        raise Unproven("it does not ask for a proof, nor give one: was it started without key_file?")
    challenge = read_challenge(received.body)
    channel.on_answer()
    secret, certificates = choose_key(terms.protection.secrets, challenge), terms.certificates(channel, dialed=False)
    opened = terms.open_transcript(secret, received.body, terms.rank, certificates)
    exchange = KeyExchange() if terms.protection.encrypt else None
    answer = nonce if exchange is None else nonce + exchange.public
    asked = await _send(channel, FrameKind.CHALLENGE, answer.hex().encode(), opened)
    try:
        body, transcript = _verified(await channel.receive(), (FrameKind.HELLO,), asked)
    except HungUp as error:
        raise Unproven("it left after it got our proof: was it started with another key_file or run_id?") from error
    theirs = read_hello(body)
    if (theirs.rank, theirs.size, theirs.lane) != (challenge.rank, challenge.size, challenge.lane):
        raise RemoteProtocolError("a hello that is not from the rank, or not for the lane, of its challenge")
    if transcript is not None:
        transcript = _exchanged(transcript, exchange, bytes.fromhex(challenge.ephemeral))
    return await _admit(channel, terms, object_to, theirs, transcript)


async def _admit(
    channel: UntrustedConnection,
    terms: HandshakeTerms,
    object_to: ObjectTo,
    theirs: Hello,
    transcript: Transcript | None,
) -> Handshaken | Refused:
    terms.check_name(channel, theirs.rank)
    channel.on_answer()
    mine = terms.hello(theirs.lane, channel)
    difference = differences(dialer=theirs, listener=mine) or object_to(theirs)
    if difference is not None:
        return await _refuse(channel, f"rank {theirs.rank}", difference, transcript)
    transcript = await _send(channel, FrameKind.WELCOME, mine.body(), transcript)
    return await _finish(channel, terms, mine, theirs, transcript, dialed=False)


async def _refuse(
    channel: UntrustedConnection, peer: str, difference: Difference, transcript: Transcript | None
) -> Refused:
    await _send(channel, FrameKind.REFUSED, difference.body(), transcript)
    return Refused(peer, difference)


# -- both


def _exchanged(transcript: Transcript, exchange: KeyExchange | None, public: bytes) -> Transcript:
    """The transcript with what the two have agreed on. Where only one side encrypts, their settings differ."""
    if exchange is None or not public:
        return transcript
    return replace(transcript, exchanged=exchange.with_peer(public))


async def _send(
    channel: UntrustedConnection, kind: FrameKind, body: bytes, transcript: Transcript | None
) -> Transcript | None:
    """Send a message, with a proof if there is a transcript. Returns the transcript including the message."""
    if transcript is None:
        await channel.send(handshake_frame(kind, body))
        return None
    transcript = transcript.after(Statement[kind.name], body)
    await channel.send(proven_frame(kind, body, transcript))
    return transcript


def _verified(
    received: HandshakeFrame, due: tuple[FrameKind, ...], transcript: Transcript | None
) -> tuple[bytes, Transcript | None]:
    """Body and transcript of a received message, after checking its kind and its proof."""
    if received.kind not in due:
        raise RemoteProtocolError(f"a {received.kind.name} where a {due[0].name} was due")
    if transcript is None:
        return received.body, None
    body, proof = read_proven(received.body)
    transcript = transcript.after(Statement[received.kind.name], body)
    if not transcript.accepts(proof):
        raise Unproven("it does not prove that it has our key: was it started with another key_file or run_id?")
    return body, transcript


async def _finish(
    channel: UntrustedConnection,
    terms: HandshakeTerms,
    mine: Hello,
    theirs: Hello,
    transcript: Transcript | None,
    *,
    dialed: bool,
) -> Handshaken:
    sealed, wire = mine.checksum or theirs.checksum, _wire(channel, terms, transcript, dialed=dialed)
    shape = terms.shape_for(mine.lane)
    if mine.shares and theirs.shares and shape is not None:
        wire = await exchange_memory(channel, shape)
    return Handshaken(theirs.rank, mine.lane, wire, sealed)


def _wire(channel: UntrustedConnection, terms: HandshakeTerms, transcript: Transcript | None, *, dialed: bool) -> Wire:
    if not terms.protection.encrypt:
        return channel.wire
    if transcript is None or not transcript.exchanged:
        raise Unproven("nothing was proven from which encryption keys could be derived")
    dialer, listener = transcript.keys()
    ours, theirs = (dialer, listener) if dialed else (listener, dialer)
    return EncryptedWire(channel.wire.socket, send_key=ours, receive_key=theirs)
