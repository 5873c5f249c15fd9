"""TLS: admission, errors about files, damaged streams and their ends."""

import asyncio
import os
import socket
import ssl
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from ringwide.errors import ConfigError, CorruptFrame
from ringwide.protocol.frame import HEADER_BYTES
from ringwide.transport.lane import Lane
from ringwide.transport.tls import TlsContexts, TlsWire, tls_contexts, tls_handshake
from transport.certificates import Authority, Files, own_contexts
from transport.wire import LIMIT_BYTES, PATIENCE_SECONDS, Listener, Wiring, header_of, lanes, pattern, send, tcp_pair


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Authority().files_in(tmp_path)


def contexts_of(files: Files) -> TlsContexts:
    return tls_contexts(cert=files.cert, key=files.key, ca=files.ca)


# The files


@pytest.mark.parametrize("which", ["cert", "key", "ca"])
def test_a_file_that_is_missing_is_named(files: Files, which: str) -> None:
    path: Path = getattr(files, which)
    path.unlink()
    with pytest.raises(ConfigError, match=f"tls.{which}: {path} cannot be read: No such file"):
        contexts_of(files)


@pytest.mark.parametrize("which", ["cert", "key", "ca"])
def test_a_file_that_may_not_be_read_is_named(files: Files, which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path: Path = getattr(files, which)
    path.chmod(0)
    if os.access(path, os.R_OK):  # the superuser may read everything, but no directory as a file
        path.unlink()
        path.mkdir()
        assert stat.S_ISDIR(path.stat().st_mode)
    with pytest.raises(ConfigError, match=f"tls.{which}: {path} cannot be read: "):
        contexts_of(files)


@pytest.mark.parametrize(("which", "what"), [("cert", "certificate"), ("key", "private key"), ("ca", "certificate")])
@pytest.mark.parametrize("content", [b"", b"no PEM at all\n", b"\x30\x82\x01\x00"], ids=["empty", "text", "DER"])
def test_a_file_that_is_not_pem_is_named(files: Files, which: str, what: str, content: bytes) -> None:
    path: Path = getattr(files, which)
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=f"tls.{which}: {path} has no {what} in PEM"):
        contexts_of(files)


def test_a_file_that_is_broken_pem_is_named(files: Files) -> None:
    files.cert.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    with pytest.raises(ConfigError, match=f"{files.cert} and {files.key} cannot be used: "):
        contexts_of(files)


def test_a_key_that_does_not_fit_its_certificate_is_named(files: Files, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = Authority().files_in(tmp_path / "other")
    with pytest.raises(ConfigError, match=f"tls.key: {other.key} does not belong to the certificate in tls.cert"):
        tls_contexts(cert=files.cert, key=other.key, ca=files.ca)


def test_a_key_with_a_passphrase_is_refused_and_nobody_is_asked(files: Files) -> None:
    key = serialization.load_pem_private_key(files.key.read_bytes(), None)
    protection = serialization.BestAvailableEncryption(b"secret")
    files.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, protection))
    with pytest.raises(ConfigError, match=f"tls.key: {files.key} is protected by a passphrase"):
        contexts_of(files)


@pytest.mark.parametrize("which", ["cert", "key", "ca"])
def test_a_pipe_is_refused_and_nobody_waits(files: Files, which: str) -> None:
    path: Path = getattr(files, which)
    path.unlink()
    os.mkfifo(path, 0o600)
    with pytest.raises(ConfigError, match=f"tls.{which}: {path} cannot be read: it is not a file"):
        contexts_of(files)


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o660, 0o650])
def test_a_key_that_others_can_use_is_refused(files: Files, mode: int) -> None:
    files.key.chmod(mode)
    message = f"tls.key: {files.key} has mode {mode:04o}, so that others on this machine can use it.*: chmod 600 "
    with pytest.raises(ConfigError, match=message):
        contexts_of(files)


@pytest.mark.parametrize("which", ["cert", "ca"])
@pytest.mark.parametrize(("mode", "welcome"), [(0o644, True), (0o444, True), (0o664, False), (0o646, False)])
def test_a_certificate_that_others_can_change_is_refused(files: Files, which: str, mode: int, welcome: bool) -> None:
    path: Path = getattr(files, which)
    path.chmod(mode)
    if welcome:
        contexts_of(files)
        return
    message = f"tls.{which}: {path} has mode {mode:04o}, so that others on this machine can change it.*: chmod go-w "
    with pytest.raises(ConfigError, match=message):
        contexts_of(files)


@pytest.mark.parametrize("which", ["cert", "ca"])
def test_a_certificate_of_another_user_is_refused(files: Files, which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path, look = getattr(files, which), os.fstat

    def fstat(descriptor: int) -> os.stat_result:
        found = list(look(descriptor))
        found[stat.ST_UID] = 8 if found[stat.ST_INO] == path.stat().st_ino else os.geteuid()
        return os.stat_result(found)

    monkeypatch.setattr(os, "fstat", fstat)
    with pytest.raises(ConfigError, match=rf"tls.{which}: {path} belongs to another user \(8\), who can change it"):
        contexts_of(files)


@pytest.mark.parametrize(("owner", "mode", "welcome"), [(0, 0o440, True), (7, 0o440, False), (8, 0o400, False)])
def test_a_group_may_read_what_root_owns(
    files: Files, owner: int, mode: int, welcome: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As services are given keys by those who run the machine."""
    files.key.chmod(mode)
    found = list(files.key.stat())
    found[stat.ST_UID] = owner
    monkeypatch.setattr(os, "fstat", lambda _: os.stat_result(found))
    monkeypatch.setattr(os, "geteuid", lambda: 7)
    if welcome:
        contexts_of(files)
    else:
        with pytest.raises(ConfigError, match=f"tls.key: {files.key} (has mode 0440|belongs to another user)"):
            contexts_of(files)


# Who gets in


async def meet(
    dialing: ssl.SSLContext, listening: ssl.SSLContext
) -> tuple[TlsWire | BaseException, TlsWire | BaseException]:
    """Both handshakes, and one byte from the listener: only then does a dialer know that it was accepted."""
    with tcp_pair() as (here, there):

        async def dial() -> TlsWire:
            wire = await tls_handshake(here, dialing, server_side=False)
            await first_byte(wire)
            return wire

        async def answer() -> TlsWire:
            try:
                wire = await tls_handshake(there, listening, server_side=True)
            except OSError:
                there.shutdown(socket.SHUT_WR)
                raise
            wire.send([b"!"])
            return wire

        async with asyncio.timeout(PATIENCE_SECONDS):
            return await asyncio.gather(dial(), answer(), return_exceptions=True)


async def first_byte(wire: TlsWire) -> None:
    while True:
        try:
            assert wire.receive([memoryview(bytearray(1))]) == 1
            return
        except BlockingIOError:
            await asyncio.sleep(0.001)


async def test_two_of_the_same_authority_meet_in_tls_1_3() -> None:
    contexts = own_contexts()
    for wire in await meet(contexts.dialing, contexts.listening):
        assert isinstance(wire, TlsWire)
        assert wire._session.version() == "TLSv1.3"
        assert wire._session.getpeercert()["subject"] == ((("commonName", "a rank"),),)  # type: ignore[index]


async def test_a_listener_notes_what_a_dialer_has_answered() -> None:
    """Its first message, and that the handshake is over; bytes that mean nothing to TLS do not count."""
    answers: list[None] = []
    with tcp_pair() as (here, there):
        listening = tls_handshake(
            there, own_contexts().listening, server_side=True, on_answer=lambda: answers.append(None)
        )
        async with asyncio.timeout(PATIENCE_SECONDS):
            await asyncio.gather(tls_handshake(here, own_contexts().dialing, server_side=False), listening)
    assert len(answers) == 2
    with tcp_pair() as (here, there):
        here.send(b"GET / HTTP/1.1\r\n\r\n")
        with pytest.raises(ConnectionAbortedError):
            await tls_handshake(
                there, own_contexts().listening, server_side=True, on_answer=lambda: answers.append(None)
            )
    assert len(answers) == 2


async def test_a_dialer_of_another_authority_is_refused(files: Files) -> None:
    dialing = contexts_of(files).dialing
    dialing.verify_mode = ssl.CERT_NONE
    dialer, listener = await meet(dialing, own_contexts().listening)
    assert isinstance(listener, ConnectionAbortedError)
    assert "the TLS handshake failed: self-signed certificate in certificate chain" in str(listener)
    assert isinstance(dialer, ConnectionAbortedError)
    assert "unknown ca" in str(dialer), "and it is told why"


async def test_a_dialer_without_a_certificate_is_refused() -> None:
    bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    bare.check_hostname, bare.verify_mode = False, ssl.CERT_NONE
    dialer, listener = await meet(bare, own_contexts().listening)
    assert isinstance(listener, ConnectionAbortedError)
    assert str(listener) == "the TLS handshake failed: peer did not return a certificate"
    assert isinstance(dialer, ConnectionAbortedError)
    assert "certificate required" in str(dialer), "and it is told why"


async def test_a_listener_of_another_authority_is_refused(files: Files) -> None:
    listening = contexts_of(files).listening
    listening.verify_mode = ssl.CERT_NONE
    dialer, listener = await meet(own_contexts().dialing, listening)
    assert isinstance(dialer, ConnectionAbortedError)
    assert "the TLS handshake failed: self-signed certificate in certificate chain" in str(dialer)
    assert isinstance(listener, ConnectionAbortedError)


async def test_an_older_version_is_refused(files: Files) -> None:
    """Though its certificate is in order."""
    old, listening = contexts_of(files).dialing, contexts_of(files).listening
    old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_2
    _, listener = await meet(old, listening)
    assert isinstance(listener, ConnectionAbortedError)
    assert "unsupported protocol" in str(listener)


@pytest.mark.parametrize("server_side", [False, True])
@pytest.mark.parametrize(
    "words", [header_of(1, 0), b"GET / HTTP/1.1\r\n\r\n" * 9, b""], ids=["ours", "http", "nothing"]
)
async def test_one_who_does_not_speak_tls_is_refused(server_side: bool, words: bytes) -> None:
    context = own_contexts().listening if server_side else own_contexts().dialing
    with tcp_pair() as (here, raw_socket):
        raw_socket.send(words)
        raw_socket.shutdown(socket.SHUT_WR)
        async with asyncio.timeout(PATIENCE_SECONDS):
            with pytest.raises(ConnectionAbortedError, match="TLS handshake"):
                await tls_handshake(here, context, server_side=server_side)


# What comes on it


async def test_what_comes_together_with_the_handshake_is_heard() -> None:
    """The listener's last read of the handshake may hold the dialer's first frame, and the kernel nothing more."""
    contexts = own_contexts()
    with tcp_pair() as (here, there):

        async def dial() -> TlsWire:
            wire = await tls_handshake(here, contexts.dialing, server_side=False)
            wire.send([header_of(7, 5) + b"early"])
            return wire

        _, answered = await asyncio.gather(dial(), tls_handshake(there, contexts.listening, server_side=True))
        listener = Listener()
        lane = Lane(answered, peer=1, index=0, events=listener, limit_bytes=LIMIT_BYTES)
        try:
            await listener.until_frames(1)
            assert listener.frames == [(7, b"early")]
        finally:
            lane.close()


async def test_every_kind_of_damage_is_noticed() -> None:
    """One byte of the ciphertext after another is flipped, in a stream of its own."""
    for at in range(0, 5 + HEADER_BYTES + 5 + 17, 3):
        async with lanes(wiring=Wiring.TLS) as ends:
            tamper(ends.wires[0], at)
            send(ends.here, 1, b"words")
            ends.here.socket.shutdown(socket.SHUT_WR)
            lost = await ends.hearing_there.until_lost()
            assert isinstance(lost, CorruptFrame | OSError | EOFError)
            assert isinstance(lost, CorruptFrame) or at < 5, "only a header of TLS can look like an early end"
            assert ends.hearing_there.frames == []


def tamper(wire: object, at: int) -> None:
    """The next record that this wire sends arrives with a byte changed."""
    assert isinstance(wire, TlsWire)
    encrypt = wire._encrypt

    def damaged(plaintext: memoryview | bytes) -> bytes:
        record = bytearray(encrypt(plaintext))
        record[at] ^= 0x55
        return bytes(record)

    wire._encrypt = damaged  # type: ignore[method-assign]


async def test_records_that_are_repeated_are_noticed() -> None:
    async with lanes(wiring=Wiring.TLS) as ends:
        wire = ends.wires[0]
        assert isinstance(wire, TlsWire)
        encrypt = wire._encrypt
        wire._encrypt = lambda plaintext: encrypt(plaintext) * 2  # type: ignore[method-assign]
        send(ends.here, 1, b"words")
        assert isinstance(await ends.hearing_there.until_lost(), CorruptFrame)
        assert ends.hearing_there.frames == [(1, b"words")]


async def test_a_farewell_of_tls_is_the_end_as_well() -> None:
    async with lanes(wiring=Wiring.TLS) as ends:
        wire = ends.wires[0]
        assert isinstance(wire, TlsWire)
        send(ends.here, 1, pattern(100_000))
        with pytest.raises(ssl.SSLWantReadError):
            wire._session.unwrap()
        wire.flush()
        assert isinstance(await ends.hearing_there.until_lost(), EOFError)
        assert ends.hearing_there.frames == [(1, pattern(100_000))]
