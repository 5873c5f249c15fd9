"""Who has the key can prove it, to one other rank and for one connection; nothing else says anything about the key.

    dialer    CHALLENGE   who I am, and 32 random bytes
    listener  CHALLENGE   32 random bytes, and a proof
    dialer    HELLO       as without a key, and a proof
    listener  WELCOME     as without a key, and a proof (or REFUSED, and a proof)

Rules:
- A proof is an HMAC-SHA256 of everything that was said on this connection so far, of who says it, of both ranks, of the
  protocol's version and of the run's id. Both sides gave random bytes, so a proof is worth nothing anywhere else: not
  for another connection, rank, lane or run, not in the other direction, not later.
- Proofs are compared in constant time. Nothing that was not proven is acted on.
- The keys of an encrypted connection come from the same words, one for each direction.
"""

import hmac
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from typing import NoReturn

from ringwide.errors import RemoteProtocolError
from ringwide.protocol.frame import VERSION, FrameKind
from ringwide.protocol.handshake import LANES_LIMIT, RANKS_LIMIT, read_object, words

KEY_BYTES = NONCE_BYTES = PROOF_BYTES = 32
_PROOF_TEXT_BYTES = 2 * PROOF_BYTES
_PURPOSE = b"ringwide handshake"


class Secret:
    """The key that all ranks of a ring share. It signs; it cannot be shown, copied into a file or compared."""

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


class Says(Enum):
    """Who proves what. A proof of one kind is none of another."""

    CHALLENGE = b"the listener asks back"
    HELLO = b"the dialer introduces itself"
    WELCOME = b"the listener lets the dialer in"
    REFUSED = b"the listener turns the dialer away"


@dataclass(frozen=True, slots=True)
class Challenge:
    """What a dialer that has a key says first."""

    rank: int
    size: int
    lane: int
    nonce: str

    def body(self) -> bytes:
        return json.dumps(asdict(self)).encode()


@dataclass(frozen=True, slots=True)
class Transcript:
    """What was said on one connection, as one of its two sides knows it. Equal on both, or no proof is accepted."""

    secret: Secret
    said: tuple[bytes, ...]

    def after(self, says: Says, body: bytes) -> "Transcript":
        return Transcript(self.secret, (*self.said, says.value, body))

    def proof(self) -> bytes:
        return self.secret.sign(b"proof", *self.said)

    def accepts(self, proof: bytes) -> bool:
        return hmac.compare_digest(self.proof(), proof)

    def keys(self) -> tuple[bytes, bytes]:
        """For what the dialer sends, and for what the listener sends."""
        return self.secret.sign(b"dialer sends", *self.said), self.secret.sign(b"listener sends", *self.said)


def begin(secret: Secret, *, run_id: str, challenge: bytes, listener: int) -> Transcript:
    """`challenge` is the body of the dialer's, which names its rank; `listener` is the rank of the other."""
    words = (_PURPOSE, bytes([VERSION]), run_id.encode(errors="surrogatepass"), challenge, str(listener).encode())
    return Transcript(secret, words)


def who_answered(opened: Sequence[Transcript], body: bytes, proof: bytes) -> int | None:
    """Whose proof it is, of the ranks that could have answered; `opened` has the beginning for each of them."""
    for rank, transcript in enumerate(opened):
        if transcript.after(Says.CHALLENGE, body).accepts(proof):
            return rank
    return None


def proven(kind: FrameKind, body: bytes, transcript: Transcript) -> bytes:
    """A whole frame: words and, at their end, the proof."""
    return words(kind, body + transcript.proof().hex().encode())


def read_proven(payload: bytes) -> tuple[bytes, bytes]:
    """The words and the proof at their end, which is still to be judged."""
    body, proof = payload[:-_PROOF_TEXT_BYTES], payload[-_PROOF_TEXT_BYTES:]
    return body, _unhex(proof, PROOF_BYTES)


def read_challenge(payload: bytes) -> Challenge:
    """Turn untrusted bytes into a dialer's challenge, or say what is wrong with them."""
    challenge = Challenge(**read_object(payload, {"rank": int, "size": int, "lane": int, "nonce": str}))
    if not 0 <= challenge.rank < challenge.size <= RANKS_LIMIT or not 0 <= challenge.lane <= LANES_LIMIT:
        raise RemoteProtocolError("a challenge with an impossible rank, size or lane")
    _unhex(challenge.nonce.encode(errors="replace"), NONCE_BYTES)  # JSON can hold what UTF-8 cannot
    return challenge


def _unhex(text: bytes, count: int) -> bytes:
    try:
        data = bytes.fromhex(text.decode("ascii"))
    except ValueError as error:
        raise RemoteProtocolError("a proof or a challenge that is not hexadecimal") from error
    if len(data) != count or len(text) != 2 * count:
        raise RemoteProtocolError(f"a proof or a challenge of {len(data)} bytes, it must have {count}")
    return data
