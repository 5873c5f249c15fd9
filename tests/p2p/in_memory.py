"""Several endpoints in one process: every byte between them moves when a test says so, and not before."""

from collections import deque
from collections.abc import Callable

from ringwide.errors import PeerLeft, RingwideError
from ringwide.p2p.endpoint import Endpoint
from ringwide.p2p.transfer import IncomingTransfer, OutgoingTransfer, SegmentOwner, Transfer
from ringwide.protocol.frame import HEADER_BYTES, FrameReader, Header
from ringwide.protocol.p2p import KEPT_LIMIT_BYTES, OFFER_BYTES, P2P_LANE, Space
from ringwide.transport.lane_buffers import Scratch

SEGMENT_BYTES, STAGING_BYTES = 64, HEADER_BYTES + 40
"""So that some payloads are staged, and others land where the endpoint says."""


ROOM_FOR_ONE, ROOM_FOR_THREE = 1, 2 * OFFER_BYTES + 200
"""Of small offers; there is room for another as long as there is any."""


class Clock:
    """Time passes when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0
        self.later: list[Callable[[], object]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[[], object], /) -> None:
        self.later.append(callback)


class Pipe:
    """One direction between two ranks: frames that the sender still has, and bytes that have left."""

    def __init__(
        self, sender: int, hear: Callable[[Header, memoryview], None], land: Callable[[Header], memoryview | None]
    ):
        self.index = P2P_LANE
        self.peer, self.scratch = sender, Scratch()
        self.waiting: deque[tuple[bytes, memoryview, SegmentOwner | None, int]] = deque()
        self.pipe = bytearray()
        self.reader = FrameReader(landing=land, arrived=hear, limit_bytes=SEGMENT_BYTES, staging_bytes=STAGING_BYTES)

    def resume(self) -> None: ...

    def leave(self) -> None:
        """One frame leaves."""
        if self.waiting:
            header, payload, owner, _ = self.waiting.popleft()
            self.pipe += header + bytes(payload)
            if owner is not None:
                owner.sent()

    def arrive(self, count: int) -> None:
        """So many bytes arrive, if there are as many."""
        while self.pipe and count:
            room = self.reader.room()[0]
            taken = min(len(room), len(self.pipe), count)
            room[:taken] = self.pipe[:taken]
            del self.pipe[:taken]
            count -= taken
            self.reader.received(taken)


class Link:
    """The link of one endpoint to another: the pipe there, and the pipe back."""

    def __init__(self, out: Pipe, back: Pipe) -> None:
        self._out, self._back = out, back

    def send_p2p(self, header: bytes, payload: memoryview, *, owner: SegmentOwner, key: int) -> None:
        self._out.waiting.append((header, payload, owner, key))

    def tell_p2p(self, frame: bytes) -> None:
        self._out.waiting.append((frame[:HEADER_BYTES], memoryview(frame)[HEADER_BYTES:], None, 0))

    def forget_p2p(self, key: int) -> None:
        self._back.reader.divert(key)
        kept = [entry for entry in self._out.waiting if entry[2] is None or entry[3] != key]
        self._out.waiting = deque(kept)


class Ended:
    """Outcomes of transfers, in order."""

    def __init__(self) -> None:
        self.outcomes: dict[Transfer, Exception | None] = {}

    def of(self, transfer: Transfer) -> str:
        if transfer not in self.outcomes:
            return "open"
        error = self.outcomes[transfer]
        return "done" if error is None else type(error).__name__


class InMemoryRanks:
    """Ranks that send messages to each other."""

    def __init__(
        self,
        size: int,
        *,
        timeout_seconds: float = 100.0,
        warn_after_seconds: float = 10.0,
        kept_limit_bytes: int = KEPT_LIMIT_BYTES,
    ) -> None:
        self.clock, self.ended, self.size = Clock(), Ended(), size
        self.opened = 0
        self.lost: list[tuple[int, Exception]] = []
        self.ways = {(a, b): self._way(a, b) for a in range(size) for b in range(size) if a != b}
        self.endpoints = [
            Endpoint(
                rank=rank,
                links={
                    peer: Link(self.ways[rank, peer], self.ways[peer, rank]) for peer in range(size) if peer != rank
                },
                clock=self.clock,
                segment_bytes=SEGMENT_BYTES,
                timeout_seconds=timeout_seconds,
                warn_after_seconds=warn_after_seconds,
                on_open=self._note_open,
                on_lane_ended=lambda peer, reason: self.lost.append((peer, reason)),
                kept_limit_bytes=kept_limit_bytes,
            )
            for rank in range(size)
        ]

    def _note_open(self) -> None:
        self.opened += 1

    def _way(self, sender: int, receiver: int) -> Pipe:
        return Pipe(
            sender,
            lambda header, payload: self.endpoints[receiver].arrived(self.ways[sender, receiver], header, payload),
            lambda header: self.endpoints[receiver].landing(self.ways[sender, receiver], header),
        )

    def send(
        self,
        sender: int,
        to: int,
        payload: bytes,
        *,
        tag: int = 0,
        dtype: str = "uint8",
        space: Space = Space.MESSAGES,
    ) -> OutgoingTransfer:
        transfer = OutgoingTransfer(
            memoryview(bytearray(payload)),
            to=to,
            space=space,
            tag=tag,
            what=f"{dtype}[{len(payload)}]",
            on_done=lambda error: self._done(transfer, error),
            sender=self.endpoints[sender],
        )
        self.endpoints[sender].send(transfer)
        return transfer

    def receive(
        self, rank: int, nbytes: int, source: int | None = None, *, tag: int = 0, space: Space = Space.MESSAGES
    ) -> IncomingTransfer:
        transfer = IncomingTransfer(
            source=source,
            space=space,
            tag=tag,
            nbytes=nbytes,
            what=f"uint8[{nbytes}]",
            on_done=lambda error: self._done(transfer, error),
            take_memory=lambda: memoryview(bytearray(nbytes)),
        )
        self.endpoints[rank].receive(transfer)
        return transfer

    def _done(self, transfer: Transfer, error: Exception | None) -> None:
        assert transfer not in self.ended.outcomes, "a transfer ends once"
        self.ended.outcomes[transfer] = error

    def of(self, transfer: Transfer) -> str:
        return self.ended.of(transfer)

    def error(self, transfer: Transfer) -> Exception:
        error = self.ended.outcomes[transfer]
        assert error is not None
        return error

    def settle(self) -> None:
        """Let everything arrive that is on its way, and whatever follows from it."""
        while any(way.waiting or way.pipe for way in self.ways.values()):
            for way in self.ways.values():
                way.leave()
                way.arrive(1 << 30)

    def say_goodbye(self, rank: int, to: int) -> PeerLeft:
        error = PeerLeft(rank=rank, reason="it is done")
        self.endpoints[to].left(rank, error)
        return error

    def fail(self, rank: int, error: RingwideError) -> None:
        self.endpoints[rank].fail(error)
