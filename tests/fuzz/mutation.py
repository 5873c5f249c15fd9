"""Frames, and what may become of them: mutations by seed, so that a failure can be had again."""

import json
import random
import re
from collections.abc import Iterator, Sequence

from tests.fuzz.targets import LIMIT_BYTES, OURS, SECRET, STAGING_BYTES

from ringwide.protocol.frame import HEADER_BYTES, FrameKind, news, pack_data, sealed_frame
from ringwide.protocol.heartbeat import Heartbeat, HeartbeatKind
from ringwide.protocol.key_proof import Challenge, Transcript, proven_frame
from ringwide.protocol.p2p import Offer, wanted

# Numbers at which something may change: signs, widths, limits, and a few around each.
EDGES = [
    edge + by for edge in (0, 1 << 7, 1 << 8, 1 << 15, 1 << 16, 1 << 31, 1 << 32, 1 << 63, 1 << 64) for by in (-1, 0, 1)
]
EDGES += [limit + by for limit in (LIMIT_BYTES, STAGING_BYTES, HEADER_BYTES, 4096) for by in (-1, 0, 1)]
# Where each field of a header begins, and how long it is.
FIELDS = [(0, 2), (2, 1), (3, 1), (4, 1), (5, 1), (6, 2), (8, 4), (12, 4), (16, 8), (24, 8), (32, 4), (36, 8), (44, 4)]
WORDS = [
    b"[1]",
    b"null",
    b"-1",
    b"1e999",
    b"NaN",
    b"true",
    b'"\\ud800"',
    b"[" * 50,
    b"{}",
    b'{"rank": 1}',
    b"\xff\xfe",
    b"9" * 60,
]


def data_frame(payload: bytes, segment: int = 0) -> bytes:
    fields = {"bucket": 0, "hop": 1, "epoch": 0, "segment": segment, "collective": 5, "fingerprint": 2**63 + 1}
    return pack_data(payload_bytes=len(payload), **fields) + payload


def stream_seeds() -> list[bytes]:
    """What a lane carries: small frames, one that must land elsewhere, and words."""
    small, large = data_frame(b"\1\2\3\4"), data_frame(bytes(STAGING_BYTES + 100), segment=3)
    abort = news(FrameKind.ABORT, "its task was cancelled", collective=5)
    return [small, data_frame(b""), large, abort, small + abort, large + small, news(FrameKind.GOODBYE, "it is done")]


def p2p_seeds() -> list[bytes]:
    """What a p2p lane carries. Rank 0 says it: its own offers are 2 and 4, and it has been offered 1, 3 and 5."""
    offer = Offer(2, 0, 7, 4, "uint8[4]").frame()
    other = Offer(4, 0, 1, 4, "float32[1]").frame()
    shown = Offer(2, 0, 9, 4, "uint8[4]").frame(kind=FrameKind.HELD)
    segment = pack_data(bucket=0, hop=0, epoch=0, segment=0, collective=2, fingerprint=0, payload_bytes=4) + b"four"
    wishes = wanted(0, 1) + wanted(0, 2)
    withdraw = news(FrameKind.WITHDRAW, "its task was cancelled", collective=2)
    answers = news(FrameKind.ACCEPT, "", collective=3) + news(FrameKind.DECLINE, "int8[4]", collective=1)
    return [offer + segment, offer + other + withdraw, shown + wishes, answers, shown + withdraw + wishes + answers]


def handshake_seeds() -> list[bytes]:
    challenge = Challenge(1, 2, 0, bytes(32).hex(), bytes(8).hex(), bytes(32).hex()).body()
    refusal = json.dumps({"field": "lanes", "dialer": 1, "listener": 2}).encode()
    bodies = [
        (FrameKind.HELLO, OURS.body()),
        (FrameKind.WELCOME, OURS.body()),
        (FrameKind.REFUSED, refusal),
        (FrameKind.CHALLENGE, challenge),
    ]
    plain = [sealed_frame(news(kind, body.decode())) for kind, body in bodies]
    return [*plain, proven_frame(FrameKind.HELLO, OURS.body(), Transcript(SECRET, ()))]


def sign_seeds() -> list[bytes]:
    return [Heartbeat(kind, 1, 250, 41, 10**9).pack() for kind in HeartbeatKind]


def mutations(seeds: Sequence[bytes], chance: random.Random, count: int) -> Iterator[bytes]:
    """Each differs from a seed, by one change or by several."""
    for _ in range(count):
        data = bytearray(chance.choice(seeds))
        for _ in range(1 + (chance.random() < 0.3) + (chance.random() < 0.1)):
            chance.choice(CHANGES)(data, chance)
        yield bytes(data)


def _flip(data: bytearray, chance: random.Random) -> None:
    if data:
        data[chance.randrange(min(len(data), 400))] ^= 1 << chance.randrange(8)


def _number(data: bytearray, chance: random.Random) -> None:
    offset, size = chance.choice(FIELDS)
    if offset + size <= len(data):
        data[offset : offset + size] = (chance.choice(EDGES) % (1 << (8 * size))).to_bytes(size, "little")


def _cut(data: bytearray, chance: random.Random) -> None:
    del data[chance.randrange(len(data) + 1) :]


def _leave_out(data: bytearray, chance: random.Random) -> None:
    start = chance.randrange(len(data) + 1)
    del data[start : start + chance.randrange(1, 9)]


def _repeat(data: bytearray, chance: random.Random) -> None:
    start = chance.randrange(len(data) + 1)
    data[start:start] = data[start : start + chance.randrange(1, 80)]


def _noise(data: bytearray, chance: random.Random) -> None:
    start = chance.randrange(len(data) + 1)
    data[start : start + 8] = chance.randbytes(8)


def _word(data: bytearray, chance: random.Random) -> None:
    start = chance.randrange(len(data) + 1)
    data[start : start + chance.randrange(12)] = chance.choice(WORDS)


def _value(data: bytearray, chance: random.Random) -> None:
    """One value of a JSON object, in a frame that says the right length."""
    values = [match.span() for match in re.finditer(rb'(?<=": )[^,}]*', data)]
    if values:
        start, stop = chance.choice(values)
        data[start:stop] = chance.choice(WORDS)
        data[32:36] = max(0, len(data) - HEADER_BYTES).to_bytes(4, "little")


CHANGES = (_value, _flip, _flip, _number, _number, _cut, _leave_out, _repeat, _noise, _word)
