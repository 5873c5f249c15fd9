"""Messages of one rank to another that nobody has accepted yet: which the other end keeps, and which wait at home.

Rules:
- What there is room for is offered, in the order of sending. The rest is held at home.
- Of what is held, the first of each tag is shown: once when it becomes the first, and again whenever its tag is wanted.
  Who sees it accepts it at once or puts it off, and keeps nothing of it.
- What is shown stays in its place, so nothing of its tag is offered before it is known what becomes of it.
"""

from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import Generic, TypeVar

from ringwide.protocol.frame import Kind

Message = TypeVar("Message", bound=Hashable)


class Offering(Generic[Message]):
    """Ask `next` after every change, until there is nothing more to say."""

    def __init__(self, room_bytes: int) -> None:
        self._room = room_bytes  # at the other end; what is offered last may take more than there is
        self._offered: dict[Message, int] = {}  # what each takes there
        self._held: OrderedDict[Message, tuple[int, int]] = OrderedDict()  # tag and what it would take
        self._of_tag: dict[int, OrderedDict[Message, None]] = {}
        self._shown: dict[int, Message] = {}  # by tag, until it is answered
        self._wanted_again: set[int] = set()  # tags of which something is shown, that were wanted meanwhile
        self._due: deque[int] = deque()  # tags of which the first is to be shown

    def add(self, message: Message, tag: int, nbytes: int) -> None:
        """`nbytes` is what its offer takes at the other end."""
        self._held[message] = tag, nbytes
        of_tag = self._of_tag.setdefault(tag, OrderedDict())
        of_tag[message] = None
        if len(of_tag) == 1:
            self._due.append(tag)

    def next(self) -> tuple[Message, Kind] | None:
        """What is to be said next: OFFER or HELD."""
        if self._held and self._room > 0:
            message, (tag, nbytes) = next(iter(self._held.items()))
            if self._shown.get(tag) != message:
                self._offered[message] = nbytes
                self._room -= nbytes
                self._let_go(message)
                return message, Kind.OFFER
        while self._due:
            tag = self._due.popleft()
            if tag in self._of_tag and tag not in self._shown:
                self._shown[tag] = next(iter(self._of_tag[tag]))
                return self._shown[tag], Kind.HELD
        return None

    def _let_go(self, message: Message) -> None:
        """It is not held any more. The next of its tag has not been shown yet."""
        tag, _ = self._held.pop(message)
        of_tag = self._of_tag[tag]
        was_first = next(iter(of_tag)) == message
        del of_tag[message]
        if not of_tag:
            del self._of_tag[tag]
        elif was_first:
            self._due.append(tag)
        if self._shown.get(tag) == message:
            self._no_longer_shown(tag)

    def _no_longer_shown(self, tag: int) -> None:
        del self._shown[tag]
        if tag in self._wanted_again:
            self._wanted_again.remove(tag)
            self._due.append(tag)

    def gone(self, message: Message) -> None:
        """It was accepted, declined or given up."""
        if message in self._held:
            self._let_go(message)
        else:
            self._room += self._offered.pop(message)

    def put_off(self, message: Message) -> None:
        """It was shown, and nobody wants it now."""
        self._no_longer_shown(self._held[message][0])

    def wanted(self, tag: int) -> None:
        """A receive waits for something with this tag. What is shown just now may have come too early for it."""
        if tag in self._shown:
            self._wanted_again.add(tag)
        elif tag in self._of_tag:
            self._due.append(tag)
