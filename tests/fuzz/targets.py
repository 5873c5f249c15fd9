"""Everything that reads bytes from a network. Each target takes any bytes, and raises only if a promise is broken.

The promises: such bytes give what they mean, or `RemoteProtocolError` (`BadPayload` from a codec); what they claim is
believed only within the limits; and reading them takes as many steps as there are bytes.
"""

from collections.abc import Callable

import numpy as np

from ringwide.compression.codecs import registry
from ringwide.compression.codecs.base import BadPayload
from ringwide.errors import RemoteProtocolError
from ringwide.p2p.endpoint import Endpoint
from ringwide.p2p.transfer import IncomingTransfer, OutgoingTransfer, SegmentOwner
from ringwide.protocol.frame import (
    DATA,
    HEADER_BYTES,
    NEWS_LIMIT_BYTES,
    FrameKind,
    FrameReader,
    Header,
    check_payload,
    seal,
)
from ringwide.protocol.handshake import (
    Hello,
    check_prefix,
    differences,
    handshake_frame,
    read_difference,
    read_header,
    read_hello,
)
from ringwide.protocol.heartbeat import HEARTBEAT_BYTES, read_heartbeat
from ringwide.protocol.key_proof import Secret, Statement, begin, read_challenge, read_proven
from ringwide.protocol.p2p import P2P_LANE
from ringwide.transport.lane_buffers import Scratch

LIMIT_BYTES = 64 * 1024
STAGING_BYTES = 256
OURS = Hello(0, 2, 0, "127.0.0.1:1\n127.0.0.1:2", {"lanes": 1, "codec": "none"}, checksum=True, shares=True)
SECRET = Secret(bytes(range(32)))
_PLACE = memoryview(bytearray(LIMIT_BYTES))
_SCRATCH = Scratch()


class Broken(Exception):
    """A promise was."""


class Listener:
    """Whoever hears of frames. Like a collective that has not begun, it may ask for some patience first."""

    def __init__(self, *, patient: bool) -> None:
        self._patient = patient
        self.heard = 0

    def landing(self, header: Header) -> memoryview | None:
        if header.payload_bytes > (LIMIT_BYTES if header.kind == DATA else NEWS_LIMIT_BYTES):
            raise Broken(f"asked for a place for {header.payload_bytes} bytes")
        self._patient = not self._patient
        return _PLACE[: header.payload_bytes] if self._patient else None

    def arrived(self, header: Header, payload: memoryview) -> None:
        if len(payload) != header.payload_bytes:
            raise Broken(f"{len(payload)} bytes, where the header says {header.payload_bytes}")
        self.heard += 1


def frames(data: bytes, *, sealed: bool = False, step: int = 1 << 20, patient: bool = True) -> int:
    """A stream of frames, in pieces of `step` bytes. How many of them were heard."""
    listener = Listener(patient=patient)
    reader = FrameReader(
        landing=listener.landing,
        arrived=listener.arrived,
        limit_bytes=LIMIT_BYTES,
        staging_bytes=STAGING_BYTES,
        sealed=sealed,
    )
    rest = memoryview(data)
    try:
        while len(rest):
            room = reader.room()
            if not room:
                reader.retry()
                continue
            if not len(room[0]):
                raise Broken("a room without room")
            count = min(step, len(rest), len(room[0]))
            room[0][:count] = rest[:count]
            reader.received(count)
            rest = rest[count:]
    except RemoteProtocolError:
        pass
    return listener.heard


class Unread:
    """A link whose peer reads nothing, and the lane on which it speaks all the same."""

    def __init__(self) -> None:
        self.peer, self.scratch, self.said = 0, _SCRATCH, 0
        self.index = P2P_LANE

    def resume(self) -> None: ...

    def send_p2p(self, header: bytes, payload: memoryview, *, owner: SegmentOwner, key: int) -> None:
        self.said += 1

    def tell_p2p(self, frame: bytes) -> None:
        self.said += 1

    def forget_p2p(self, key: int) -> None: ...

    def time(self) -> float:
        return 0.0

    def call_later(self, delay: float, callback: Callable[[], object], /) -> None: ...


def p2p(data: bytes) -> int:
    """What a p2p lane carries, to a rank that sends three messages and waits for one. How many frames were heard."""
    link, heard = Unread(), 0
    endpoint = _endpoint(link)

    def arrived(header: Header, payload: memoryview) -> None:
        nonlocal heard
        endpoint.arrived(link, header, payload)
        heard += 1

    reader = FrameReader(
        landing=lambda header: endpoint.landing(link, header),
        arrived=arrived,
        limit_bytes=LIMIT_BYTES,
        staging_bytes=STAGING_BYTES,
    )
    rest = memoryview(data)
    try:
        while len(rest):
            room = reader.room()[0]
            count = min(len(rest), len(room))
            room[:count] = rest[:count]
            reader.received(count)
            rest = rest[count:]
    except RemoteProtocolError:
        pass
    if link.said > 20:
        raise Broken(f"{link.said} frames for one that does not read")
    return heard


def _endpoint(link: Unread) -> Endpoint:
    endpoint = Endpoint(
        rank=1,
        links={0: link},
        clock=link,
        segment_bytes=LIMIT_BYTES,
        timeout_seconds=1.0,
        warn_after_seconds=1.0,
        on_open=lambda: None,
        on_lane_ended=lambda peer, reason: None,
        kept_limit_bytes=1,
    )
    endpoint.watch_given_up_exchanges(lambda peer, number, words: None)
    for tag in range(3):
        endpoint.send(
            OutgoingTransfer(_PLACE[:4], to=0, space=0, tag=tag, what="uint8[4]", on_done=_done, sender=endpoint)
        )
    endpoint.receive(
        IncomingTransfer(
            source=0, space=0, tag=7, nbytes=4, what="uint8[4]", on_done=_done, take_memory=lambda: _PLACE[8:12]
        )
    )
    return endpoint


def _done(error: Exception | None) -> None: ...


def handshake(data: bytes) -> bool:
    """One frame of a handshake, and what either side does with it. Was it understood?"""
    try:
        if len(data) < HEADER_BYTES or check_prefix(data[:3]) is not None:
            return False
        header = read_header(data[:HEADER_BYTES])
        body = data[HEADER_BYTES : HEADER_BYTES + header.payload_bytes]
        check_payload(header, body)
        _understand(FrameKind(header.kind), body)
    except RemoteProtocolError:
        return False
    return True


def _understand(kind: FrameKind, body: bytes) -> None:
    if kind == FrameKind.CHALLENGE:
        challenge = read_challenge(body)
        transcript = begin(SECRET, run_id="", challenge=body, listener=challenge.rank)
        transcript.after(Statement.CHALLENGE, body).accepts(bytes(32))
    elif kind == FrameKind.REFUSED:
        str(read_difference(body).as_error(rank=0, peer="rank 1", dialed=True))
    else:
        theirs = read_hello(body)
        if any(isinstance(value, dict | list) for value in theirs.settings.values()) or theirs.rank >= theirs.size:
            raise Broken(f"believed {theirs}")
        difference = differences(dialer=theirs, listener=OURS)
        if difference is not None:
            handshake_frame(FrameKind.REFUSED, difference.body())
            str(difference.as_error(rank=0, peer="rank 1", dialed=False))


def proof(data: bytes) -> bool:
    try:
        body, said = read_proven(data)
    except RemoteProtocolError:
        return False
    if len(body) + 2 * len(said) != len(data):
        raise Broken("a proof of another length")
    return True


def sign(data: bytes) -> bool:
    """A heartbeat; they come in pieces of one length."""
    if len(data) < HEARTBEAT_BYTES:
        return False
    try:
        read = read_heartbeat(data, size=4)
    except RemoteProtocolError:
        return False
    if read.stuck_to >= 4:
        raise Broken(f"stuck to rank {read.stuck_to} of 4")
    return True


def codecs(data: bytes) -> bool:
    """The first byte is the number of a codec, the next two say how many numbers must come out."""
    if len(data) < 4:
        return False
    codec = registry.decoder(data[0])
    dtype = np.dtype(np.float64 if data[3] % 2 else np.float32)
    if codec is None or not codec.carries(dtype):
        return False
    out = np.zeros(int.from_bytes(data[1:3], "little"), dtype)
    try:
        codec.decode(memoryview(data)[4:], out)
    except BadPayload:
        return False
    return True


def resealed(data: bytes) -> bytes:
    """The same frame with checksums that fit: who can reach us can compute them."""
    if len(data) < HEADER_BYTES:
        return data
    length = int.from_bytes(data[32:36], "little")
    return seal(data[:HEADER_BYTES], data[HEADER_BYTES : HEADER_BYTES + length]) + data[HEADER_BYTES:]


TARGETS: tuple[Callable[[bytes], object], ...] = (
    frames,
    lambda data: frames(data, step=7, patient=False),
    lambda data: frames(data, sealed=True),
    lambda data: frames(resealed(data), sealed=True, step=61),
    handshake,
    lambda data: handshake(resealed(data)),
    proof,
    sign,
    codecs,
    p2p,
)
