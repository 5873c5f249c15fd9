"""Direct delivery: the rank that has a chunk sends it to all others at once.

One hop, for small all-gathers and broadcasts.
"""

from collections.abc import Iterable, Mapping, Sequence

from ringwide.protocol.instruction import Keep, Script, Send

_HOP = 1
_KEEP: Script = (Keep(),)


class DirectMachine:
    """One rank's side of a direct delivery. `senders` maps each segment to the rank that sends it."""

    overwrites_sent = False

    def __init__(self, *, rank: int, size: int, senders: Mapping[int, int]) -> None:
        self._rank, self._size, self._senders = rank, size, senders
        self._missing = {segment for segment, sender in senders.items() if sender != rank}

    @property
    def done(self) -> bool:
        return not self._missing

    def begin(self) -> Iterable[tuple[int, Script]]:
        to_all = tuple(Send(_HOP, (self._rank + distance) % self._size) for distance in range(1, self._size))
        return [(segment, to_all) for segment, sender in self._senders.items() if sender == self._rank]

    def expects(self, peer: int, segment: int, hop: int) -> bool:
        return segment in self._missing and self._senders[segment] == peer and hop == _HOP

    def combines(self, hop: int) -> bool:
        return False

    def is_partial(self, hop: int) -> bool:
        return False

    def arrive(self, segment: int, hop: int) -> Script:
        self._missing.remove(segment)
        return _KEEP

    def waiting_for(self) -> Sequence[int]:
        return sorted({self._senders[segment] for segment in self._missing})
