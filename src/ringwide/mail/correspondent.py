"""What one rank knows of its messages to and from one other."""

from collections import deque

from ringwide.errors import PeerLeft, RemoteProtocolError
from ringwide.mail.letter import Incoming, Outgoing
from ringwide.protocol.mail import numbers_from


class Correspondent:
    """The letters under way between this rank and `peer`, by number."""

    def __init__(self, rank: int, peer: int) -> None:
        self.peer = peer
        self._ours, self._theirs = numbers_from(rank, peer), numbers_from(peer, rank)
        self._next_of_ours, self.next_of_theirs = next(self._ours), next(self._theirs)
        self.held: deque[Outgoing] = deque()  # not even offered
        self.offered: dict[int, Outgoing] = {}  # and not answered
        self.leaving: dict[int, Outgoing] = {}  # accepted
        self.arriving: dict[int, Incoming] = {}
        self.unwanted: dict[int, int] = {}  # accepted and given up: how many bytes may still come
        self.departed: PeerLeft | None = None
        self.lane_ended = False

    def number(self, letter: Outgoing) -> None:
        """The letter is the next one that is offered."""
        letter.number, self._next_of_ours = self._next_of_ours, next(self._ours)
        self.offered[letter.number] = letter

    def is_ours(self, number: int) -> bool:
        return number % 2 == self._next_of_ours % 2

    def expect_offer(self, number: int) -> None:
        if number != self.next_of_theirs:
            raise RemoteProtocolError(
                f"rank {self.peer} offered message {number}, where {self.next_of_theirs} comes next"
            )
        self.next_of_theirs = next(self._theirs)

    def check_known(self, number: int) -> None:
        """What is said of a message that is over may have been said before that was known. Of others it may not."""
        if number < 1 or number >= (self._next_of_ours if self.is_ours(number) else self.next_of_theirs):
            raise RemoteProtocolError(f"rank {self.peer} speaks of message {number}, which nobody has offered")

    def drop(self, number: int, nbytes: int) -> None:
        """A part has come of a message that was given up here."""
        left = self.unwanted.get(number, 0) - nbytes
        if number not in self.unwanted or left < 0:
            raise RemoteProtocolError(f"rank {self.peer} sent a part of message {number}, which was not accepted")
        if left:
            self.unwanted[number] = left
        else:
            del self.unwanted[number]

    def outgoing(self) -> list[Outgoing]:
        return [*self.held, *self.offered.values(), *self.leaving.values()]
