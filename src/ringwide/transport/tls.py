"""Mutual TLS 1.3: contexts from certificate files, the handshake, and the wire."""

import asyncio
import os
import re
import shlex
import ssl
import stat
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from socket import socket as Socket
from typing import NoReturn, cast

from ringwide.errors import ConfigError, CorruptFrame
from ringwide.transport.lane_buffers import CiphertextQueue
from ringwide.transport.wire import CutOff, Views

_ROOT = 0
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_OTHERS_BUT_READING_GROUP = _OTHERS & ~stat.S_IRGRP
_HANDSHAKE_READ_BYTES = 16 * 1024
_RECEIVE_BYTES = 128 * 1024
_CERTIFICATE = re.compile(f"{ssl.PEM_HEADER}.*?{ssl.PEM_FOOTER}", re.DOTALL)


# -- contexts from files


@dataclass(frozen=True, slots=True)
class TlsContexts:
    """TLS contexts of a rank, one for each role."""

    dialing: ssl.SSLContext
    listening: ssl.SSLContext
    certificate: bytes  # digest of this rank's own
    names: tuple[str, ...] | None = None  # for each rank, a name that its certificate must have


def tls_contexts(*, cert: Path, key: Path, ca: Path, names: tuple[str, ...] | None = None) -> TlsContexts:
    """Contexts from PEM files. `ConfigError` names the file that is wrong."""
    for name, path in (("key", key), ("cert", cert), ("ca", ca)):
        _check_readable(name, path)
    listening = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    listening.num_tickets = 0  # sessions are never resumed
    dialing = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    dialing.check_hostname = False
    for context in (dialing, listening):
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        _load_authority(context, ca)
        _load_certificate(context, cert, key)
    return TlsContexts(dialing, listening, _digest_of_first(cert), names)


def _digest_of_first(cert: Path) -> bytes:
    """Digest of the first certificate in a file, which is the one that OpenSSL shows; those behind it vouch for it."""
    found = _CERTIFICATE.search(cert.read_text("ascii", errors="replace"))
    if found is None:
        raise ConfigError(f"tls.cert: {cert} has no certificate in PEM")
    return sha256(ssl.PEM_cert_to_DER_cert(found[0])).digest()


def _check_readable(name: str, path: Path) -> None:
    try:
        descriptor = open_nonblocking(path)
    except OSError as error:
        raise ConfigError(f"tls.{name}: {path} cannot be read: {error.strerror}") from error
    found = os.fstat(descriptor)
    os.close(descriptor)
    if not stat.S_ISREG(found.st_mode):
        raise ConfigError(f"tls.{name}: {path} cannot be read: it is not a file")
    private = name == "key"  # the others are public, but whoever can change them decides who joins, or as whom
    if problem := why_not_private(found, path, group_of_root=True) if private else _why_not_ours(found, path):
        raise ConfigError(f"tls.{name}: {path} {problem}")


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
        raise ConfigError(_explain_bad_pem(cert, key, error)) from error


def _explain_bad_pem(cert: Path, key: Path, error: ssl.SSLError) -> str:
    if b"-----BEGIN CERTIFICATE-----" not in cert.read_bytes():
        return f"tls.cert: {cert} has no certificate in PEM"
    if b"PRIVATE KEY-----" not in key.read_bytes():
        return f"tls.key: {key} has no private key in PEM"
    return f"tls.cert, tls.key: {cert} and {key} cannot be used: {_reason(error)}"


def open_nonblocking(path: Path) -> int:
    """A descriptor to read from. An ordinary open would block on a pipe without a writer."""
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)


def why_not_private(found: os.stat_result, path: Path, *, group_of_root: bool = False) -> str | None:
    """Reason why others can use this file, and how to change that. None: only we or root can.

    `group_of_root`: a group may read what root owns, which is how services often get their certificates.
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


def _why_not_ours(found: os.stat_result, path: Path) -> str | None:
    """Reason why others can change this file, and how to change that. None: only we or root can."""
    if found.st_uid not in (os.geteuid(), _ROOT):
        return f"belongs to another user ({found.st_uid}), who can change it; use a file of your own"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return (
            f"has mode {stat.S_IMODE(found.st_mode):04o}, so that others on this machine can change it; "
            f"let them read it at most: chmod go-w {shlex.quote(str(path))}"
        )
    return None


# -- the handshake


async def tls_handshake(
    sock: Socket,
    context: ssl.SSLContext,
    *,
    server_side: bool,
    on_cost: Callable[[float], None] = lambda _: None,
    on_answer: Callable[[], None] = lambda: None,
) -> "TlsWire":
    """Do the handshake on a non-blocking socket. `OSError` if it fails; the caller closes the socket.

    `on_cost` is called after each step with the CPU seconds that the handshake has taken so far, `on_answer` when the
    other end has sent something to which TLS has an answer, and at the end.
    """
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    session = context.wrap_bio(incoming, outgoing, server_side=server_side)
    loop, cost = asyncio.get_running_loop(), 0.0
    while True:
        began = time.thread_time()
        failure, done = _step(session)
        cost += time.thread_time() - began
        on_cost(cost)
        if answers := outgoing.pending > 0:
            await loop.sock_sendall(sock, outgoing.read())  # also if it failed: the peer is told why
        if failure is not None:
            raise ConnectionAbortedError(f"the TLS handshake failed: {_reason(failure)}") from failure
        if done or answers:
            on_answer()
        if done:
            return TlsWire(sock, session, incoming, outgoing)
        received = await loop.sock_recv(sock, _HANDSHAKE_READ_BYTES)
        if not received:
            raise ConnectionAbortedError("the connection ended in the middle of a TLS handshake")
        incoming.write(received)


def _step(session: ssl.SSLObject) -> tuple[ssl.SSLError | None, bool]:
    """Take the handshake as far as the received bytes allow. Returns why it failed, and whether it is done."""
    try:
        session.do_handshake()
    except ssl.SSLWantReadError:
        return None, False
    except ssl.SSLError as error:
        return error, False
    return None, True


# -- the wire


class TlsWire:
    """One end of a TLS connection after its handshake. `incoming` may hold bytes that came with the last message."""

    plain = False

    def __init__(self, sock: Socket, session: ssl.SSLObject, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> None:
        self.socket = sock
        self._session, self._incoming, self._outgoing = session, incoming, outgoing
        self._ciphertext = CiphertextQueue(sock)
        self._buffer = memoryview(bytearray(_RECEIVE_BYTES))
        self._failure: Exception | None = None  # raised only after the good bytes before it were received
        self.more = True  # perhaps: a session says that it has no bytes only when asked for some

    @property
    def peer_certificate(self) -> bytes:
        """Digest of the certificate that the other end has shown."""
        return sha256(self._session.getpeercert(binary_form=True) or b"").digest()

    @property
    def peer_names(self) -> list[str]:
        """Names in the certificate that the other end has shown: the subject alternative names of every kind."""
        shown = (self._session.getpeercert() or {}).get("subjectAltName", ())
        return [str(name) for _, name in cast(Sequence[tuple[str, object]], shown)]

    # -- sending

    @property
    def unsent(self) -> bool:
        return bool(self._ciphertext) or self._outgoing.pending > 0

    def send(self, views: Views) -> int:
        self._queue_own_messages()
        try:
            return self._ciphertext.send(views, self._encrypt)
        except ssl.SSLError as error:  # the session is over; reading tells why
            raise ConnectionAbortedError(f"TLS has ended: {_reason(error)}") from error

    def flush(self) -> None:
        self._queue_own_messages()
        self._ciphertext.flush()

    def _queue_own_messages(self) -> None:
        """Queue what the session sends of its own accord, such as new keys."""
        if self._outgoing.pending:
            self._ciphertext.put(self._outgoing.read())

    def _encrypt(self, plaintext: memoryview | bytes) -> bytes:
        written = self._session.write(plaintext)
        assert written == len(plaintext), "a MemoryBIO takes everything"
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
            count = self.socket.recv_into(self._buffer)
            if count == 0:
                raise CutOff("it closed the connection, and TLS in it was not ended")
            self._incoming.write(self._buffer[:count])

    def _decrypt(self, room: Sequence[memoryview]) -> int:
        """Fill `room` as far as the session has bytes. `SSLWantReadError` if it has none at all."""
        total = 0
        self.more = True
        try:
            for buffer in room:
                while buffer:
                    count = cast(int, self._session.read(len(buffer), buffer))  # given a buffer, it returns a count
                    if count == 0:
                        return total  # the end; it says so again when it is asked again
                    buffer, total = buffer[count:], total + count
        except ssl.SSLWantReadError:
            if total == 0:
                raise
            self.more = False
        except ssl.SSLZeroReturnError:
            return total
        except ssl.SSLError as error:
            self._failure = _translated(error)
            if total == 0:
                raise self._failure from error
        return total

    # -- the end

    def close(self) -> None:
        with suppress(OSError):  # best effort: nobody waits for an answer, nor for room in the kernel
            self._send_close_notify()
        self.socket.close()

    def _send_close_notify(self) -> None:
        with suppress(ssl.SSLWantReadError):
            self._session.unwrap()
        self.flush()


def _translated(error: ssl.SSLError) -> Exception:
    """The error by whose fault it is: an alert of the peer, or bytes that the peer cannot have sent."""
    if "ALERT" in (error.reason or ""):
        return ConnectionAbortedError(f"the peer ended TLS: {_reason(error)}")
    return CorruptFrame(f"TLS cannot read what has come: {_reason(error)}")


def _reason(error: ssl.SSLError) -> str:
    """OpenSSL's message without the line of its source."""
    message = getattr(error, "verify_message", "")
    return message or (error.reason or str(error)).replace("_", " ").lower()
