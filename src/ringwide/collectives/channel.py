"""A channel: one order of collectives, numbered from 1 on every rank.

All channels share the numbers on the wire: bits 40 to 62 are the channel's, from its name, and the lower 40 count its
collectives. (Bit 63 stays free: numbers are also tags of messages, which have a sign.) The default channel has no name,
and 0 for its bits.
"""

from collections.abc import Iterator, Mapping
from hashlib import blake2b

from ringwide.errors import ConfigError

SEQUENCE_BITS = 40
_SEQUENCE_MASK = (1 << SEQUENCE_BITS) - 1
_MOST_ID = (1 << 23) - 1
MOST_CHANNELS = 400
"""Each may have frames waiting for it, and a goodbye tells of each."""


def channel_of(number: int) -> int:
    return number >> SEQUENCE_BITS


def sequence_of(number: int) -> int:
    """Which collective of its channel this is."""
    return number & _SEQUENCE_MASK


def is_after(number: int, finished: Mapping[int, int]) -> bool:
    """Does a collective come after all that are finished, of each channel the last?"""
    return number > finished.get(number >> SEQUENCE_BITS, 0)


class Channel:
    """One rank's side of a channel."""

    __slots__ = ("first", "id", "name", "next")

    def __init__(self, name: str) -> None:
        self.name = name
        digest = int.from_bytes(blake2b(name.encode(), digest_size=3).digest(), "little")
        self.id = digest % _MOST_ID + 1 if name else 0
        self.first = self.next = (self.id << SEQUENCE_BITS) + 1
        """The number of the next collective."""

    @property
    def called(self) -> int:
        """The number of the last collective that was called here, or the one before the first."""
        return self.next - 1

    @property
    def suffix(self) -> str:
        """To tell its collectives from others, for people."""
        return f" on channel {self.name!r}" if self.name else ""


class Channels:
    """Those of one ring, by the upper bits of their numbers."""

    def __init__(self) -> None:
        self.default = Channel("")
        self._by_id = {0: self.default}

    def named(self, name: str) -> Channel:
        """The channel of this name, new if it is used for the first time."""
        channel = Channel(name)
        known = self._by_id.get(channel.id)
        if known is not None and known.name != name:
            raise ConfigError(f"channel {name!r} and channel {known.name!r} cannot be told apart; rename one of them")
        if known is None and len(self._by_id) > MOST_CHANNELS:
            raise ConfigError(f"channel {name!r} is one too many: a ring has {MOST_CHANNELS} beside its default one")
        return known or self._by_id.setdefault(channel.id, channel)

    def is_ahead(self, number: int) -> bool:
        """Has this collective not been called here yet?"""
        channel = self._by_id.get(number >> SEQUENCE_BITS)
        return channel is None or number >= channel.next

    def __iter__(self) -> Iterator[Channel]:
        return iter(self._by_id.values())
