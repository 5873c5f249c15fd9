"""A frame that waits to leave."""

from ringwide.collectives.operation import SendOwner


class Parcel:
    """A queued frame: what is still to leave of it, and whose it is."""

    __slots__ = ("collective", "echo", "left", "overtaken", "owner", "pause", "started", "views")

    def __init__(self, views: list[bytes | memoryview], owner: SendOwner | None, collective: int) -> None:
        self.views, self.owner, self.collective = views, owner, collective
        self.left = sum(map(len, views))
        self.started = False
        self.echo: Parcel | None = None  # the same bytes once more
        self.overtaken = 0  # by so many frames that were sent later
        self.pause = 0.0  # so long nothing comes after it

    def take(self, count: int) -> bytes:
        """The next bytes, as they are in memory now."""
        whole = b"".join(self.views)
        self.views = _after(self.views, count) if count < self.left else []
        self.left -= count
        self.started = True
        return whole if not self.left else whole[:count]


def _after(views: list[bytes | memoryview], count: int) -> list[bytes | memoryview]:
    """What is left of some buffers after their first bytes; not a copy, it may still change."""
    rest: list[bytes | memoryview] = []
    for view in views:
        if count < len(view):
            rest.append(memoryview(view)[count:])
        count = max(0, count - len(view))
    return rest
