"""News about collectives: what ranks tell each other in words, beside the frames that carry numbers."""

from collections.abc import Iterable, Mapping, Sequence

from ringwide.collectives.bucket_operation import LinkLike
from ringwide.collectives.deadlines import Clock
from ringwide.collectives.running_collective import Collective
from ringwide.compression.autotune import Decision
from ringwide.errors import CollectiveAborted, CollectiveMismatch, CollectiveTimeout, RemoteProtocolError
from ringwide.protocol.frame import DATA, FrameKind, Header, goodbye, news, words_in

LEAVING_SECONDS = 0.5
"""How long a rank may take to leave before the others hear of what it has given up."""


class Announcements:
    """What this rank tells all others."""

    def __init__(self, links: Mapping[int, LinkLike], clock: Clock, epoch: int) -> None:
        self._links, self._clock, self._epoch = links, clock, epoch
        self.untold: dict[int, str] = {}  # collectives given up here of which the others don't know yet: why

    def tell_all(self, frame: bytes) -> None:
        for link in self._links.values():
            link.tell(frame)

    def abort(self, number: int, reason: str, *, leaving: bool = False) -> None:
        """This rank takes no part. One that is `leaving` lets its goodbye tell that, if it comes soon."""
        self.untold[number] = reason
        if leaving:
            self._clock.call_later(LEAVING_SECONDS, lambda: self._tell_abort(number))
        else:
            self._tell_abort(number)

    def _tell_abort(self, number: int) -> None:
        reason = self.untold.pop(number, None)
        if reason is not None:
            self.tell_all(news(FrameKind.ABORT, reason, collective=number, epoch=self._epoch))

    def goodbye(self, reason: str, finished: Iterable[int]) -> None:
        self.tell_all(goodbye(reason, finished, epoch=self._epoch))
        self.untold.clear()  # the goodbye says as much

    def dispute(self, collective: Collective) -> None:
        """Say what we were called with; the other side will do the same."""
        if collective.told:
            return
        collective.told = True
        number, fingerprint = collective.number, collective.fingerprint
        text = collective.described
        self.tell_all(news(FrameKind.DISPUTE, text, collective=number, fingerprint=fingerprint, epoch=self._epoch))

    def timeout(self, collective: Collective, missing: Sequence[int], seconds: float) -> None:
        text = f"{seconds:g} {','.join(map(str, missing))}"
        self.tell_all(news(FrameKind.TIMEOUT, text, collective=collective.number, epoch=self._epoch))

    def codec_choice(self, fingerprint: int, bucket: int, decision: Decision) -> None:
        """This rank has decided which codec a bucket of such collectives gets from now on."""
        text = f"{bucket} {decision.codec} {'settled' if decision.settled else 'trial'} {decision.reason}"
        self.tell_all(news(FrameKind.CHOICE, text, fingerprint=fingerprint, epoch=self._epoch))


def misplaced(peer: int, header: Header) -> RemoteProtocolError:
    """A frame that has no business on a lane for collectives."""
    if header.kind < DATA:
        return RemoteProtocolError(f"rank {peer} sent a handshake to a ring that has formed")
    return RemoteProtocolError(f"rank {peer} sent a p2p frame on a lane for collectives")


def abort_error(collective: Collective, peer: int, payload: memoryview) -> CollectiveAborted:
    reason = words_in(payload)
    return CollectiveAborted(number=collective.sequence, what=collective.what, by=peer, reason=reason)


def mismatch_error(collective: Collective, rank: int, peer: int, payload: memoryview) -> CollectiveMismatch:
    """The error of this rank, whose peer has said what it was called with."""
    ours, theirs, advice = collective.compared_with(bytes(payload).decode(errors="replace"))
    return CollectiveMismatch(
        number=collective.sequence, rank=rank, ours=ours, other_rank=peer, theirs=theirs, advice=advice
    )


def timeout_error(collective: Collective, missing: Sequence[int], seconds: float) -> CollectiveTimeout:
    return CollectiveTimeout(number=collective.sequence, what=collective.what, waiting_for=missing, seconds=seconds)


def told_timeout(collective: Collective, peer: int, payload: memoryview) -> CollectiveTimeout:
    """Another rank was the first to give up: all of them fail alike."""
    seconds, _, ranks = words_in(payload).partition(" ")
    try:
        return timeout_error(collective, [int(rank) for rank in ranks.split(",") if rank], float(seconds))
    except ValueError:
        raise RemoteProtocolError(f"rank {peer} gave up on collective {collective.number} in strange words") from None
