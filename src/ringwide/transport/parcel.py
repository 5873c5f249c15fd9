"""A frame that waits to leave, and whose it is."""

from typing import Protocol


class Owner(Protocol):
    """Whose payload it is."""

    def sent(self) -> None: ...


class Parcel:
    """One queued frame: what is still to be sent of it, and whose it is."""

    __slots__ = ("collective", "owner", "started", "views")

    def __init__(self, views: list[memoryview | bytes], owner: Owner | None, collective: int, started: bool) -> None:
        self.views, self.owner, self.collective, self.started = views, owner, collective, started


def after(views: list[memoryview | bytes], count: int) -> list[memoryview | bytes]:
    """What is left of some buffers after their first `count` bytes."""
    for number, view in enumerate(views):
        if count < len(view):
            return [memoryview(view)[count:], *views[number + 1 :]]
        count -= len(view)
    return []
