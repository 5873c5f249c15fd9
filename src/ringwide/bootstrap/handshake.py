"""Two ranks meet on one connection: who says what, in which order, with a key and without.

Rules:
- A rank that has a key acts on nothing that is not proven, and says nothing to one that does not even ask for a proof.
- What the two disagree on is told to both, with both values; to one without the key nothing is told.
"""

import errno
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from ringwide.bootstrap.peers import Address
from ringwide.bootstrap.protection import Protection
from ringwide.bootstrap.same_host import is_unix
from ringwide.bootstrap.untrusted_connection import (
    HandshakeFrame,
    HungUp,
    OtherVersion,
    UntrustedConnection,
    until_readable,
)
from ringwide.errors import RemoteProtocolError
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
    Challenge,
    Secret,
    Statement,
    Transcript,
    begin,
    find_prover,
    proven_frame,
    read_challenge,
    read_proven,
)
from ringwide.transport.aead_wire import EncryptedWire
from ringwide.transport.shm_arena import ArenaReader, ArenaShape, ArenaWriter
from ringwide.transport.shm_lane import SharedWire
from ringwide.transport.wire import Wire

_HERE_IT_IS = b"\0"
_FILES = 2  # the memory, and its bell


@cache
def can_share() -> bool:
    """Does this system have memory that can be handed over? Not every one does, or lets every process."""
    try:
        ArenaWriter(ArenaShape(1, 1)).close()
    except AttributeError:
        return False
    except OSError as error:
        return error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # not now, but it will be asked again
    return True


async def share(channel: UntrustedConnection, shape: ArenaShape) -> SharedWire:
    """Both sides have said that they do. Descriptors travel with a byte of their own."""
    outgoing, sock = ArenaWriter(shape), channel.wire.socket
    try:
        socket.send_fds(sock, [_HERE_IT_IS], outgoing.files)  # the kernel has room: all before it has been answered
        outgoing.handed_over()
        return SharedWire(sock, outgoing, ArenaReader(shape, *await _receive(sock)))
    except BaseException:
        outgoing.close()
        raise


async def _receive(sock: socket.socket) -> list[int]:
    while True:
        try:
            data, files, flags, _ = socket.recv_fds(sock, len(_HERE_IT_IS), _FILES, socket.MSG_CMSG_CLOEXEC)
            break
        except (BlockingIOError, InterruptedError):
            await until_readable(sock)
    if data == _HERE_IT_IS and len(files) == _FILES and not flags & socket.MSG_CTRUNC:
        return files
    for file in files:
        os.close(file)
    if not data:
        raise HungUp("the connection ended where memory was due")
    raise RemoteProtocolError("it shares something else than memory and a bell")


Judge = Callable[[Hello], Difference | None]
"""What a listener has against one that was started like itself: it may be here already."""


class Unproven(RemoteProtocolError):
    """The other end does not have our key, or does not show it."""


@dataclass(frozen=True, slots=True)
class HandshakeTerms:
    """What one rank brings to every handshake."""

    rank: int
    size: int
    peers: str
    settings: Mapping[str, Setting]
    protection: Protection
    shape_for: Callable[[int], ArenaShape | None] = lambda _: None
    """Of the memory that this rank shares with others on its machine: what a lane gets, if anything."""

    def hello(self, lane: int, channel: UntrustedConnection) -> Hello:
        settings, checksum = {**self.settings, **self._guards()}, self._wishes_checksum(channel)
        shares = not checksum and self._shares(lane, channel)
        return Hello(self.rank, self.size, lane, self.peers, settings, checksum, shares)

    def _shares(self, lane: int, channel: UntrustedConnection) -> bool:
        """Not where somebody asked for encryption of what is sent."""
        if self.shape_for(lane) is None or not is_unix(channel.wire.socket):
            return False
        return channel.wire.plain and not self.protection.encrypt and can_share()

    def _guards(self) -> Mapping[str, Setting]:
        guards = self.protection
        return {"encrypt": guards.encrypt, "tls": guards.tls is not None, "run_id": guards.run_id}

    def _wishes_checksum(self, channel: UntrustedConnection) -> bool:
        if self.protection.checksum is not None:
            return self.protection.checksum
        return channel.wire.plain and not self.protection.encrypt and not channel.same_host

    def opened(self, secret: Secret, challenge: bytes, listener: int) -> Transcript:
        return begin(secret, run_id=self.protection.run_id, challenge=challenge, listener=listener)


class Handshaken(NamedTuple):
    """Both want this lane, and its wire is ready."""

    peer: int
    lane: int
    wire: Wire
    sealed: bool


class Refused(NamedTuple):
    """The two were not started alike, and both know."""

    peer: str
    difference: Difference


# -- the one that dials


async def introduce(
    channel: UntrustedConnection, terms: HandshakeTerms, *, peer: int, address: Address, lane: int, nonce: bytes
) -> Handshaken | Refused:
    """Say who we are, to whom we take for `peer`. `nonce` is fresh and random."""
    mine, secret, transcript = terms.hello(lane, channel), terms.protection.secret, None
    if secret is not None:
        transcript = await _ask_for_proof(channel, terms, secret, peer, lane, nonce)
    transcript = await _say(channel, FrameKind.HELLO, mine.body(), transcript)
    try:
        heard = await channel.receive()
    except OtherVersion as other:
        return Refused(f"rank {peer}", _turned_round(other.difference, transcript, other))
    body, transcript = _judged(heard, (FrameKind.WELCOME, FrameKind.REFUSED), transcript)
    if heard.kind == FrameKind.REFUSED:
        return Refused(f"rank {peer}", read_difference(body))
    theirs = read_hello(body)
    difference = differences(dialer=mine, listener=theirs)
    if theirs.rank != peer:
        difference = Difference(f"rank at {address} in the peers file", peer, theirs.rank)
    if difference is not None:
        return Refused(f"rank {peer}", difference)
    return await _met(channel, terms, mine, theirs, transcript, dialed=True)


def _turned_round(difference: Difference, transcript: Transcript | None, error: OtherVersion) -> Difference:
    """A difference of versions is written from the dialer's side; here the dialer has found it."""
    if transcript is not None:
        raise error
    return Difference(difference.field, difference.listener, difference.dialer)


async def _ask_for_proof(
    channel: UntrustedConnection, terms: HandshakeTerms, secret: Secret, peer: int, lane: int, nonce: bytes
) -> Transcript:
    challenge = Challenge(terms.rank, terms.size, lane, nonce.hex()).body()
    await channel.send(handshake_frame(FrameKind.CHALLENGE, challenge))
    heard = await channel.receive()
    if heard.kind != FrameKind.CHALLENGE:
        raise Unproven("it does not prove that it has our key: was it started without key_file?")
    answer, proof = read_proven(heard.body)
    transcript = terms.opened(secret, challenge, peer).after(Statement.CHALLENGE, answer)
    if transcript.accepts(proof):
        return transcript
    # Nothing more is said to it. But is it one of us, at another's address? Then this rank should say so.
    other = find_prover([terms.opened(secret, challenge, rank) for rank in range(terms.size)], answer, proof)
    if other is not None:
        raise Unproven(f"it proves to be rank {other}: is the peers file right, and was each rank started once?")
    raise Unproven("it does not prove that it has our key: was it started with another key_file or run_id?")


# -- the one that listens


async def answer(
    channel: UntrustedConnection, terms: HandshakeTerms, *, judge: Judge, nonce: bytes
) -> Handshaken | Refused:
    """Hear who it is, and tell it whether it may come in. `nonce` is fresh and random."""
    secret = terms.protection.secret
    if secret is None:
        return await _answer_anybody(channel, terms, judge)
    return await _answer_with_proof(channel, terms, secret, judge, nonce)


async def _answer_anybody(channel: UntrustedConnection, terms: HandshakeTerms, judge: Judge) -> Handshaken | Refused:
    try:
        heard = await channel.receive()
    except OtherVersion as other:
        return await _refuse(channel, "a peer", other.difference, None)
    if heard.kind == FrameKind.CHALLENGE:
        peer = f"rank {read_challenge(heard.body).rank}"
        return await _refuse(channel, peer, Difference("key_file", "a key", "no key"), None)
    body, _ = _judged(heard, (FrameKind.HELLO,), None)
    return await _let_in(channel, terms, judge, read_hello(body), None)


async def _answer_with_proof(
    channel: UntrustedConnection, terms: HandshakeTerms, secret: Secret, judge: Judge, nonce: bytes
) -> Handshaken | Refused:
    heard = await channel.receive()
    if heard.kind != FrameKind.CHALLENGE:
        raise Unproven("it does not ask for a proof, nor give one: was it started without key_file?")
    challenge = read_challenge(heard.body)
    opened = terms.opened(secret, heard.body, terms.rank)
    asked = await _say(channel, FrameKind.CHALLENGE, nonce.hex().encode(), opened)
    try:
        body, transcript = _judged(await channel.receive(), (FrameKind.HELLO,), asked)
    except HungUp as error:
        raise Unproven("it left when it had our proof: was it started with another key_file or run_id?") from error
    theirs = read_hello(body)
    if (theirs.rank, theirs.size, theirs.lane) != (challenge.rank, challenge.size, challenge.lane):
        raise RemoteProtocolError("a hello that is not from the rank, or not for the lane, of its challenge")
    return await _let_in(channel, terms, judge, theirs, transcript)


async def _let_in(
    channel: UntrustedConnection, terms: HandshakeTerms, judge: Judge, theirs: Hello, transcript: Transcript | None
) -> Handshaken | Refused:
    mine = terms.hello(theirs.lane, channel)
    difference = differences(dialer=theirs, listener=mine) or judge(theirs)
    if difference is not None:
        return await _refuse(channel, f"rank {theirs.rank}", difference, transcript)
    transcript = await _say(channel, FrameKind.WELCOME, mine.body(), transcript)
    return await _met(channel, terms, mine, theirs, transcript, dialed=False)


async def _refuse(
    channel: UntrustedConnection, peer: str, difference: Difference, transcript: Transcript | None
) -> Refused:
    await _say(channel, FrameKind.REFUSED, difference.body(), transcript)
    return Refused(peer, difference)


# -- both


async def _say(
    channel: UntrustedConnection, kind: FrameKind, body: bytes, transcript: Transcript | None
) -> Transcript | None:
    """The transcript goes on with what was said."""
    if transcript is None:
        await channel.send(handshake_frame(kind, body))
        return None
    transcript = transcript.after(Statement[kind.name], body)
    await channel.send(proven_frame(kind, body, transcript))
    return transcript


def _judged(
    heard: HandshakeFrame, due: tuple[FrameKind, ...], transcript: Transcript | None
) -> tuple[bytes, Transcript | None]:
    """What was said, if it was proven to be said by whom we talk to."""
    if heard.kind not in due:
        raise RemoteProtocolError(f"a {heard.kind.name} where a {due[0].name} was due")
    if transcript is None:
        return heard.body, None
    body, proof = read_proven(heard.body)
    transcript = transcript.after(Statement[heard.kind.name], body)
    if not transcript.accepts(proof):
        raise Unproven("it does not prove that it has our key: was it started with another key_file or run_id?")
    return body, transcript


async def _met(
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
        wire = await share(channel, shape)
    return Handshaken(theirs.rank, mine.lane, wire, sealed)


def _wire(channel: UntrustedConnection, terms: HandshakeTerms, transcript: Transcript | None, *, dialed: bool) -> Wire:
    if not terms.protection.encrypt:
        return channel.wire
    if transcript is None:
        raise Unproven("nothing was proven from which keys to encrypt with could come")
    dialer, listener = transcript.keys()
    ours, theirs = (dialer, listener) if dialed else (listener, dialer)
    return EncryptedWire(channel.wire.socket, send_key=ours, receive_key=theirs)
