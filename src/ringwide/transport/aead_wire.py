"""Wire encrypted with AES-256-GCM, under keys that only the two ends have.

A record is the length of its plaintext (u32), the ciphertext and a tag of 16 bytes. The length is authenticated as
well, and the nonce is the number of the record, so a record that was changed, left out, repeated or swapped cannot be
decrypted. No nonce is used twice: every connection has a key of its own for each direction. After `RECORDS_PER_KEY`
records both ends replace it by one that follows from it, and from which it does not follow. `docs/wire.md` shows the
record as a table.
"""

import hmac
import struct
from collections.abc import Sequence
from socket import socket as Socket
from typing import TYPE_CHECKING

from ringwide.errors import ConfigError, CorruptFrame, RemoteProtocolError
from ringwide.protocol.frame import HEADER_BYTES
from ringwide.transport.lane_buffers import PIECE_BYTES, SMALL_BYTES, CiphertextQueue
from ringwide.transport.wire import CutOff, Views

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM


RECORD_LIMIT_BYTES = PIECE_BYTES + HEADER_BYTES
"""Longest plaintext of a record. A claim of more is refused before any memory is allocated for it."""
RECORDS_PER_KEY = 2**19
"""About 128 GiB under one key at most, far from where AES-GCM becomes weak."""
KEY_BYTES, TAG_BYTES = 32, 16
_NEXT_KEY = b"ringwide next key"
_LENGTH = struct.Struct("<I")
_NONCE_BYTES = 12
_FIRST_BUFFER_BYTES = 32 * 1024


def cipher(key: bytes) -> "AESGCM":
    """AES-GCM with this key. Its package is an extra, so it is imported only here."""
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        raise ConfigError(
            "encrypt: true needs the package cryptography, which is not installed: pip install 'ringwide[secure]'"
        ) from error
    if not hasattr(AESGCM, "decrypt_into"):
        raise ConfigError("encrypt: true needs version 47 of cryptography or newer: pip install 'ringwide[secure]'")
    if len(key) != KEY_BYTES:
        raise ValueError(f"a key of {len(key)} bytes, it must have {KEY_BYTES}")
    return AESGCM(key)


class KeyExchange:
    """One side of an X25519 exchange, for one connection. The private key is forgotten with this object."""

    def __init__(self) -> None:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        self._private = X25519PrivateKey.generate()
        self.public = self._private.public_key().public_bytes_raw()

    def with_peer(self, public: bytes) -> bytes:
        """What only the two sides know."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

        try:
            return self._private.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError as error:  # a point whose result everybody knows
            raise RemoteProtocolError("a public key with which no secret can be agreed on") from error


class EncryptedWire:
    """One end of an encrypted connection. The `send_key` here is the `receive_key` there."""

    plain = False

    def __init__(self, sock: Socket, send_key: bytes, receive_key: bytes) -> None:
        if send_key == receive_key:
            raise ValueError("one key for both directions: the same nonces would be used twice")
        self._send_key, self._receive_key = send_key, receive_key
        self._encryption, self._decryption = cipher(send_key), cipher(receive_key)
        self._invalid_tag = _invalid_tag()
        self.socket = sock
        self._ciphertext = CiphertextQueue(sock)
        self._large = memoryview(b"")  # buffer for large records, one after the other
        self._encrypted = self._decrypted = 0  # records
        self._buffer = memoryview(bytearray(_FIRST_BUFFER_BYTES))  # received ciphertext, from _start to _end
        self._start = self._end = 0
        self._plaintext = memoryview(b"")  # decrypted, and not received by the lane yet

    # -- sending

    @property
    def unsent(self) -> bool:
        return bool(self._ciphertext)

    def send(self, views: Views) -> int:
        return self._ciphertext.send(views, self._encrypt)

    def flush(self) -> None:
        self._ciphertext.flush()

    def _encrypt(self, plaintext: memoryview | bytes) -> memoryview | bytes:
        if self._encrypted % RECORDS_PER_KEY == 0 and self._encrypted:
            self._send_key = _next_key(self._send_key)
            self._encryption = cipher(self._send_key)
        length, nonce = _LENGTH.pack(len(plaintext)), _nonce(self._encrypted)
        self._encrypted += 1
        if len(plaintext) <= SMALL_BYTES:
            return length + self._encryption.encrypt(nonce, plaintext, length)
        if not self._large:
            self._large = memoryview(bytearray(_LENGTH.size + RECORD_LIMIT_BYTES + TAG_BYTES))
        record = self._large[: _LENGTH.size + len(plaintext) + TAG_BYTES]
        record[: _LENGTH.size] = length
        self._encryption.encrypt_into(nonce, plaintext, length, record[_LENGTH.size :])
        return record

    # -- receiving

    @property
    def more(self) -> bool:
        return bool(self._plaintext) or 0 < self._record_bytes() <= self._end - self._start

    def receive(self, room: Sequence[memoryview]) -> int:
        if self._plaintext:
            return self._hand_over(room)
        while True:
            needed = self._record_bytes()
            if 0 < needed <= self._end - self._start:
                return self._decrypt(self._record(needed), room)
            self._make_room_for(needed or _LENGTH.size)
            count = self.socket.recv_into(self._buffer[self._end :])
            if count == 0 and self._end > self._start:
                raise CutOff("it closed the connection in the middle of an encrypted record")
            if count == 0:
                return 0
            self._end += count

    def _record_bytes(self) -> int:
        """Bytes of the next record, including its length and tag. 0: not known yet.

        An impossible length counts as a record without a body: nothing more is waited for, and `_record` refuses it.
        """
        if self._end - self._start < _LENGTH.size:
            return 0
        (length,) = _LENGTH.unpack_from(self._buffer, self._start)
        return _LENGTH.size + (length + TAG_BYTES if 0 < length <= RECORD_LIMIT_BYTES else 0)

    def _record(self, nbytes: int) -> memoryview:
        """Take the next record out of the buffer."""
        record = self._buffer[self._start : self._start + nbytes]
        if nbytes == _LENGTH.size:
            (length,) = _LENGTH.unpack(record)
            raise CorruptFrame(f"an encrypted record claims {length} bytes, it must have 1 to {RECORD_LIMIT_BYTES}")
        self._start += nbytes
        if self._start == self._end:
            self._start = self._end = 0
        return record

    def _decrypt(self, record: memoryview, room: Sequence[memoryview]) -> int:
        """Decrypt a record straight into `room` if it fits there as a whole."""
        if self._decrypted % RECORDS_PER_KEY == 0 and self._decrypted:
            self._receive_key = _next_key(self._receive_key)
            self._decryption = cipher(self._receive_key)
        nonce, length, ciphertext = _nonce(self._decrypted), record[: _LENGTH.size], record[_LENGTH.size :]
        nbytes = len(ciphertext) - TAG_BYTES
        try:
            if nbytes <= len(room[0]):
                count = self._decryption.decrypt_into(nonce, ciphertext, length, room[0][:nbytes])
            else:
                self._plaintext = memoryview(self._decryption.decrypt(nonce, ciphertext, length))
                count = self._hand_over(room)
        except self._invalid_tag as error:
            raise CorruptFrame(
                f"encrypted record {self._decrypted} cannot be decrypted: it was damaged, left out, repeated or swapped"
            ) from error
        self._decrypted += 1
        return count

    def _make_room_for(self, nbytes: int) -> None:
        if self._start + nbytes <= len(self._buffer):
            return
        unread = bytes(self._buffer[self._start : self._end])
        if nbytes > len(self._buffer):
            self._buffer = memoryview(bytearray(_LENGTH.size + RECORD_LIMIT_BYTES + TAG_BYTES))
        self._buffer[: len(unread)] = unread
        self._start, self._end = 0, len(unread)

    def _hand_over(self, room: Sequence[memoryview]) -> int:
        count = 0
        for buffer in room:
            part = self._plaintext[: len(buffer)]
            buffer[: len(part)] = part
            self._plaintext = self._plaintext[len(part) :]
            count += len(part)
        return count

    # -- the end

    def close(self) -> None:
        self.socket.close()


def _invalid_tag() -> type[Exception]:
    from cryptography.exceptions import InvalidTag

    return InvalidTag


def _next_key(key: bytes) -> bytes:
    return hmac.digest(key, _NEXT_KEY, "sha256")


def _nonce(number: int) -> bytes:
    return number.to_bytes(_NONCE_BYTES, "little")
