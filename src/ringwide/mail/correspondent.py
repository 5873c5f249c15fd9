"""What one rank knows of its messages to and from one other."""

from collections import OrderedDict, deque

from ringwide.errors import PeerLeft, RemoteProtocolError
from ringwide.mail.letter import Incoming, Outgoing
from ringwide.protocol.frame import Kind
from ringwide.protocol.p2p import Offering, Space, numbers_from


class Shown:
    """Letters that are held and were shown to the other rank, by number, until it answers."""

    def __init__(self) -> None:
        self.letters: OrderedDict[int, Outgoing] = OrderedDict()
        self._in_lane: deque[int] = deque()
        self.last_left = 0

    def add(self, letter: Outgoing) -> None:
        self.letters[letter.number] = letter
        self._in_lane.append(letter.number)

    def sent(self) -> None:
        """The next of them has left for the kernel: from now on it can be answered."""
        self.last_left = self._in_lane.popleft()


class Correspondent:
    """The letters under way between this rank and `peer`, by number."""

    def __init__(self, rank: int, peer: int, kept_limit_bytes: int) -> None:
        self.peer = peer
        self._ours, self._theirs = numbers_from(rank, peer), numbers_from(peer, rank)
        self._next_of_ours, self.next_of_theirs = next(self._ours), next(self._theirs)
        self.unaccepted: dict[Outgoing, None] = {}  # held, shown or offered
        self.offering: dict[int, Offering[Outgoing]] = {space: Offering(kept_limit_bytes) for space in Space}
        self.offered: dict[int, Outgoing] = {}  # and not answered
        self.shown = Shown()
        self.leaving: dict[int, Outgoing] = {}  # accepted
        self.turns: OrderedDict[Outgoing, None] = OrderedDict()  # of these, those whose next segment waits for its turn
        self.in_lane, self.filling_lane = 0, False  # segments of all of them
        self.arriving: dict[int, Incoming] = {}
        self.unwanted: dict[int, int] = {}  # accepted and given up: how many bytes may still come
        self.departed: PeerLeft | None = None
        self.lane_ended = False

    def number(self, letter: Outgoing, kind: Kind) -> None:
        """The letter is the next one that is offered, or shown."""
        letter.number, self._next_of_ours = self._next_of_ours, next(self._ours)
        if kind == Kind.OFFER:
            self.offered[letter.number] = letter
        else:
            self.shown.add(letter)

    def answered(self, number: int) -> Outgoing | None:
        """The letter with this number, if it waits for an answer; it does not any more."""
        return self.offered.pop(number, None) or self.shown.letters.pop(number, None)

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
        return [*self.unaccepted, *self.leaving.values()]
