"""Proof that a rank has the shared key, to one other rank and for one connection, without revealing the key.

    dialer    CHALLENGE   who I am, and 32 random bytes
    listener  CHALLENGE   32 random bytes, and a proof
    dialer    HELLO       as without a key, and a proof
    listener  WELCOME     as without a key, and a proof (or REFUSED, and a proof)

Rules:
- A proof is an HMAC-SHA256 of all messages on this connection so far, of the sender's role, of both ranks, of the
  protocol's version, of the run's id and, inside TLS, of both certificates: nobody with a certificate but without the
  key can sit in between and pass the proofs on. Both sides contribute random bytes, so a proof is worth nothing
  anywhere else: not for another connection, rank, lane or run, not in the other direction, not later.
- While a key is changed, a rank has several. The dialer names its keys by tags, which only those who have them can read
  and which are others for every connection. The listener takes the first of its own that the dialer has, and both use
  that one until the end. All tags are covered by the proofs.
- Proofs are compared in constant time. A message without a valid proof has no effect.
- With encryption each side makes a pair of X25519 keys for this connection alone, and forgets it. The public ones are
  in the two challenges, so the proofs cover them. What encrypts, one key for each direction, comes from the exchange,
  the shared key and all messages: whoever gets the shared key later cannot decrypt what was recorded.
"""

import hmac
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import NamedTuple, NoReturn

from ringwide.errors import RemoteProtocolError
from ringwide.protocol.frame import VERSION, FrameKind
from ringwide.protocol.handshake import LANES_LIMIT, RANKS_LIMIT, handshake_frame, read_object

KEY_BYTES = NONCE_BYTES = PROOF_BYTES = EPHEMERAL_BYTES = 32
KEYS_LIMIT = 4
"""Most keys that a rank may have at a time."""
_TAG_BYTES = 8  # it only helps to choose a key, and proves nothing
_PROOF_TEXT_BYTES = 2 * PROOF_BYTES
_PURPOSE = b"ringwide handshake"


class Secret:
    """The key that all ranks of a ring share. It signs, but cannot be printed, pickled or compared."""

    __slots__ = ("_key",)

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError(f"a key has {KEY_BYTES} bytes")
        self._key = key

    def __repr__(self) -> str:
        return "<Secret>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret stays in its process")

    def sign(self, *parts: bytes) -> bytes:
        """Each part is signed with its length, so that no two lists of parts look alike."""
        signature = hmac.new(self._key, digestmod="sha256")
        for part in parts:
            signature.update(len(part).to_bytes(4, "little") + part)
        return signature.digest()


class Statement(Enum):
    """Messages that carry a proof. A proof of one kind is not valid for another."""

    CHALLENGE = b"the listener asks back"
    HELLO = b"the dialer introduces itself"
    WELCOME = b"the listener lets the dialer in"
    REFUSED = b"the listener turns the dialer away"


@dataclass(frozen=True, slots=True)
class Challenge:
    """First message of a dialer that has a key."""

    rank: int
    size: int
    lane: int
    nonce: str
    keys: str  # tags of the dialer's keys, one after the other
    ephemeral: str  # its public key for this connection; empty without encryption

    def body(self) -> bytes:
        return json.dumps(asdict(self)).encode()


def tags_of(secrets: Sequence[Secret], nonce: str) -> str:
    """The dialer's keys as its challenge names them."""
    return "".join(_tag(secret, nonce) for secret in secrets)


def _tag(secret: Secret, nonce: str) -> str:
    return secret.sign(b"key", _PURPOSE, bytes([VERSION]), nonce.encode())[:_TAG_BYTES].hex()


def choose_key(secrets: Sequence[Secret], challenge: Challenge) -> Secret:
    """The listener's choice: the first of its keys that the dialer has too, or the first if there is none.

    In the second case its proof is not accepted, and so the dialer can tell its user why.
    """
    digits = 2 * _TAG_BYTES
    theirs = {challenge.keys[start : start + digits] for start in range(0, len(challenge.keys), digits)}
    return next((secret for secret in secrets if _tag(secret, challenge.nonce) in theirs), secrets[0])


@dataclass(frozen=True, slots=True)
class Transcript:
    """The messages on one connection, as one side knows them. If the two sides differ, no proof is accepted."""

    secret: Secret
    messages: tuple[bytes, ...]
    exchanged: bytes = field(default=b"", repr=False)  # result of the X25519 exchange, which nobody else knows

    def after(self, statement: Statement, body: bytes) -> "Transcript":
        return replace(self, messages=(*self.messages, statement.value, body))

    def proof(self) -> bytes:
        return self.secret.sign(b"proof", *self.messages)

    def accepts(self, proof: bytes) -> bool:
        return hmac.compare_digest(self.proof(), proof)

    def keys(self) -> tuple[bytes, bytes]:
        """Encryption keys: for what the dialer sends, and for what the listener sends.

        As in HKDF, the first step extracts one key from all there is, the second makes two of it.
        """
        extracted = Secret(self.secret.sign(b"keys", *self.messages, self.exchanged))
        return extracted.sign(b"dialer sends"), extracted.sign(b"listener sends")


class Certificates(NamedTuple):
    """Digests of the certificates with which the two sides have met, as one side has seen them. Empty without TLS."""

    dialer: bytes = b""
    listener: bytes = b""


WITHOUT_TLS = Certificates()


def begin(
    secret: Secret, *, run_id: str, challenge: bytes, listener: int, certificates: Certificates = WITHOUT_TLS
) -> Transcript:
    """The transcript after the dialer's challenge, whose body names its rank. `listener` is the rank of the other."""
    where = (_PURPOSE, bytes([VERSION]), run_id.encode(errors="surrogatepass"), *certificates)
    return Transcript(secret, (*where, challenge, str(listener).encode()))


def find_prover(opened: Sequence[Transcript], body: bytes, proof: bytes) -> int | None:
    """The rank whose proof this is. `opened` has, for each rank, the transcript with that rank as the listener."""
    for rank, transcript in enumerate(opened):
        if transcript.after(Statement.CHALLENGE, body).accepts(proof):
            return rank
    return None


def proven_frame(kind: FrameKind, body: bytes, transcript: Transcript) -> bytes:
    """A whole frame of a handshake: the body, and the proof behind it."""
    return handshake_frame(kind, body + transcript.proof().hex().encode())


def read_proven(payload: bytes) -> tuple[bytes, bytes]:
    """The body and the proof behind it, which is still to be checked."""
    body, proof = payload[:-_PROOF_TEXT_BYTES], payload[-_PROOF_TEXT_BYTES:]
    return body, _unhex(proof, PROOF_BYTES)


def read_challenge(payload: bytes) -> Challenge:
    """A dialer's challenge from untrusted bytes, or an error that says what is wrong with them."""
    challenge = Challenge(
        **read_object(payload, {"rank": int, "size": int, "lane": int, "nonce": str, "keys": str, "ephemeral": str})
    )
    if not 0 <= challenge.rank < challenge.size <= RANKS_LIMIT or not 0 <= challenge.lane <= LANES_LIMIT:
        raise RemoteProtocolError("a challenge with an impossible rank, size or lane")
    _unhex(challenge.nonce.encode(errors="replace"), NONCE_BYTES)  # JSON can hold what UTF-8 cannot
    tags = len(challenge.keys) // (2 * _TAG_BYTES)
    if not 1 <= tags <= KEYS_LIMIT:
        raise RemoteProtocolError(f"a challenge with {tags} keys, it must have 1 to {KEYS_LIMIT}")
    _unhex(challenge.keys.encode(errors="replace"), tags * _TAG_BYTES)
    if challenge.ephemeral:
        _unhex(challenge.ephemeral.encode(errors="replace"), EPHEMERAL_BYTES)
    return challenge


def read_answer(body: bytes) -> bytes:
    """The listener's public key for this connection, from its challenge. Empty without encryption."""
    nonce_digits = 2 * NONCE_BYTES
    _unhex(body[:nonce_digits], NONCE_BYTES)
    return _unhex(body[nonce_digits:], EPHEMERAL_BYTES) if len(body) > nonce_digits else b""


def _unhex(text: bytes, count: int) -> bytes:
    try:
        data = bytes.fromhex(text.decode("ascii"))
    except ValueError as error:
        raise RemoteProtocolError("a proof or a challenge that is not hexadecimal") from error
    if len(data) != count or len(text) != 2 * count:
        raise RemoteProtocolError(f"a proof or a challenge of {len(data)} bytes, it must have {count}")
    return data
