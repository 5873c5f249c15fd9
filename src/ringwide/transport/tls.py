"""TLS 1.3 with both ends proven: contexts from three files, the handshake, and the wire."""

import asyncio
import os
import shlex
import ssl
import stat
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from socket import socket as Socket
from typing import NoReturn, cast

from ringwide.errors import ConfigError, CorruptFrame
from ringwide.transport.buffers import Outbox
from ringwide.transport.wire import CutOff, Views

_ROOT = 0
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_OTHERS_BUT_READING_GROUP = _OTHERS & ~stat.S_IRGRP


def open_without_waiting(path: Path) -> int:
    """A descriptor to read from. A pipe that nobody feeds would keep an ordinary open waiting."""
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)


def why_not_private(found: os.stat_result, path: Path, *, group_of_root: bool = False) -> str | None:
    """What is wrong with who can use this file, and the cure. None: it is ours, or root's, alone.

    `group_of_root`: a group may read what root owns, as certificates are often given to services.
    """
    if found.st_uid not in (os.geteuid(), _ROOT):
        return f"belongs to another user ({found.st_uid}), who can read and change it; use a file of your own"
    allows_group = group_of_root and found.st_uid == _ROOT
    if found.st_mode & (_OTHERS_BUT_READING_GROUP if allows_group else _OTHERS):
        return (
            f"has mode {stat.S_IMODE(found.st_mode):04o}, so that others on this machine can use it; "
            f"keep it to yourself: chmod 600 {shlex.quote(str(path))}"
        )
    return None


_BOX_BYTES = 128 * 1024


class TlsWire:
    """One end, after the handshake. Bytes that came together with its last message wait in `incoming`."""

    plain = False

    def __init__(self, sock: Socket, session: ssl.SSLObject, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> None:
        self.socket = sock
        self._session, self._incoming, self._outgoing = session, incoming, outgoing
        self._outbox = Outbox(sock)
        self._box = memoryview(bytearray(_BOX_BYTES))
        self._failure: Exception | None = None  # what came before it was good, and is received first
        self.more = True  # perhaps: the session tells only when it is asked for bytes, and has none

    # -- sending

    @property
    def unsent(self) -> bool:
        return bool(self._outbox) or self._outgoing.pending > 0

    def send(self, views: Views) -> int:
        self._collect()
        try:
            return self._outbox.send(views, self._enclose)
        except ssl.SSLError as error:  # the session is over; reading tells why
            raise ConnectionAbortedError(f"TLS has ended: {words(error)}") from error

    def flush(self) -> None:
        self._collect()
        self._outbox.flush()

    def _collect(self) -> None:
        """What the session has to say of its own accord, such as new keys."""
        if self._outgoing.pending:
            self._outbox.put(self._outgoing.read())

    def _enclose(self, plaintext: memoryview | bytes) -> bytes:
        written = self._session.write(plaintext)
        assert written == len(plaintext), "memory takes everything"
        return self._outgoing.read()

    # -- receiving

    def receive(self, room: Sequence[memoryview]) -> int:
        if self._failure is not None:
            raise self._failure
        while True:
            try:
                return self._decrypt(room)
            except ssl.SSLWantReadError:
                self.more = False
            count = self.socket.recv_into(self._box)
            if count == 0:
                raise CutOff("it closed the connection, and TLS in it was not ended")
            self._incoming.write(self._box[:count])

    def _decrypt(self, room: Sequence[memoryview]) -> int:
        """Fill the room as far as the session has bytes; `SSLWantReadError` if it has none at all."""
        total = 0
        self.more = True
        try:
            for place in room:
                while place:
                    count = cast(int, self._session.read(len(place), place))  # given a place, it answers with a count
                    if count == 0:
                        return total  # the end; it says so again when it is asked again
                    place, total = place[count:], total + count
        except ssl.SSLWantReadError:
            if total == 0:
                raise
            self.more = False
        except ssl.SSLZeroReturnError:
            return total
        except ssl.SSLError as error:
            self._failure = told(error)
            if total == 0:
                raise self._failure from error
        return total

    # -- the end

    def close(self) -> None:
        with suppress(OSError):  # as far as it goes: nobody waits for an answer, nor for room in the kernel
            self._say_that_it_ends()
        self.socket.close()

    def _say_that_it_ends(self) -> None:
        with suppress(ssl.SSLWantReadError):
            self._session.unwrap()
        self.flush()


def told(error: ssl.SSLError) -> Exception:
    """Whose fault it is: the peer refused us (an alert), or the bytes are not what the peer can have sent."""
    if "ALERT" in (error.reason or ""):
        return ConnectionAbortedError(f"the peer ended TLS: {words(error)}")
    return CorruptFrame(f"TLS does not understand what has come: {words(error)}")


def words(error: ssl.SSLError) -> str:
    """What OpenSSL means, without the place in its source."""
    message = getattr(error, "verify_message", "")
    return message or (error.reason or str(error)).replace("_", " ").lower()


_HANDSHAKE_READ_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True)
class TlsContexts:
    """What a rank needs for its connections, in either role."""

    dialing: ssl.SSLContext
    listening: ssl.SSLContext


def tls_contexts(*, cert: Path, key: Path, ca: Path) -> TlsContexts:
    """From files in PEM. `ConfigError` names the file that is wrong."""
    for name, path in (("cert", cert), ("key", key), ("ca", ca)):
        _check_readable(name, path)
    listening = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    listening.num_tickets = 0  # nobody comes back to this session
    dialing = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    dialing.check_hostname = False
    for context in (dialing, listening):
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        _load_authority(context, ca)
        _load_certificate(context, cert, key)
    return TlsContexts(dialing, listening)


def _check_readable(name: str, path: Path) -> None:
    try:
        descriptor = open_without_waiting(path)
    except OSError as error:
        raise ConfigError(f"tls.{name}: {path} cannot be read: {error.strerror}") from error
    found = os.fstat(descriptor)
    os.close(descriptor)
    if not stat.S_ISREG(found.st_mode):
        raise ConfigError(f"tls.{name}: {path} cannot be read: it is not a file")
    if name == "key" and (problem := why_not_private(found, path, group_of_root=True)):
        raise ConfigError(f"tls.key: {path} {problem}")


def _load_authority(context: ssl.SSLContext, ca: Path) -> None:
    try:
        context.load_verify_locations(ca)
    except ssl.SSLError as error:
        raise ConfigError(f"tls.ca: {ca} has no certificate in PEM") from error


def _load_certificate(context: ssl.SSLContext, cert: Path, key: Path) -> None:
    def passphrase() -> NoReturn:
        raise ConfigError(f"tls.key: {key} is protected by a passphrase; use a key without, and mode 0600")

    try:
        context.load_cert_chain(cert, key, password=passphrase)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(f"tls.key: {key} does not belong to the certificate in tls.cert, {cert}") from error
        raise ConfigError(_what_is_no_pem(cert, key, error)) from error


def _what_is_no_pem(cert: Path, key: Path, error: ssl.SSLError) -> str:
    if b"-----BEGIN CERTIFICATE-----" not in cert.read_bytes():
        return f"tls.cert: {cert} has no certificate in PEM"
    if b"PRIVATE KEY-----" not in key.read_bytes():
        return f"tls.key: {key} has no private key in PEM"
    return f"tls.cert, tls.key: {cert} and {key} cannot be used: {words(error)}"


async def secured(
    sock: Socket, context: ssl.SSLContext, *, server_side: bool, on_cost: Callable[[float], None] = lambda _: None
) -> TlsWire:
    """Do the handshake on a non-blocking socket. `OSError` if it fails; the socket is the caller's to close.

    `on_cost` hears of the processor's seconds that it has taken so far, each time that it gets on.
    """
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    session = context.wrap_bio(incoming, outgoing, server_side=server_side)
    loop, cost = asyncio.get_running_loop(), 0.0
    while True:
        began = time.thread_time()
        failure, done = _step(session)
        cost += time.thread_time() - began
        on_cost(cost)
        if outgoing.pending:
            await loop.sock_sendall(sock, outgoing.read())  # also if it failed: the peer is told why
        if failure is not None:
            raise ConnectionAbortedError(f"the TLS handshake failed: {words(failure)}") from failure
        if done:
            return TlsWire(sock, session, incoming, outgoing)
        received = await loop.sock_recv(sock, _HANDSHAKE_READ_BYTES)
        if not received:
            raise ConnectionAbortedError("the connection ended in the middle of a TLS handshake")
        incoming.write(received)


def _step(session: ssl.SSLObject) -> tuple[ssl.SSLError | None, bool]:
    """As far as the handshake gets with what has come: why it failed, and whether it is done."""
    try:
        session.do_handshake()
    except ssl.SSLWantReadError:
        return None, False
    except ssl.SSLError as error:
        return error, False
    return None, True
