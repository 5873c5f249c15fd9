"""Mutual TLS 1.3: contexts from three files, and the handshake.

Every rank has a certificate, and whoever shows one of the same authority is let in: names are not compared, since ranks
are known by their place in the peers file. A certificate must be good for both roles, as a rank dials and listens.
"""

import asyncio
import os
import ssl
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from socket import socket as Socket
from typing import NoReturn

from ringwide.errors import ConfigError
from ringwide.transport.private import open_without_waiting, why_not_private
from ringwide.transport.tls_wire import TlsWire, words

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
