"""A wire under TLS. The session works in memory; this moves its bytes to and from the socket.

Who closes says so inside TLS (close_notify). An end of the connection without that is a cut, also between two records:
TLS keeps the first bytes of a record to itself.
"""

import ssl
from collections.abc import Sequence
from contextlib import suppress
from socket import socket as Socket
from typing import cast

from ringwide.errors import CorruptFrame
from ringwide.transport.outbox import Outbox
from ringwide.transport.wire import CutOff, Views

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
