"""One direction of a connection over a long link, as bytes and moments: no sockets, no clock.

Rules:
- What is taken at a moment may be given half a round trip later, not earlier, in order.
- What was given is acknowledged, and that takes the way back: only then does it leave the window. So a connection
  carries at most a window a round trip, as TCP does, however fast the link is.
- Connections may share a line of a certain rate. Then bytes set off one after the other.
"""

from collections import deque


class Line:
    """What connections share: so many bytes a second, for all of them together."""

    def __init__(self, bytes_per_second: float) -> None:
        self._bytes_per_second = bytes_per_second
        self._free_at = 0.0

    def departed(self, nbytes: int, now: float) -> float:
        """When the last of these bytes has set off."""
        self._free_at = max(now, self._free_at) + nbytes / self._bytes_per_second
        return self._free_at


class Flow:
    """The bytes on their way, in memory as large as the window: what is taken overwrites what was acknowledged."""

    def __init__(self, *, delay_seconds: float, window_bytes: int, line: Line | None = None) -> None:
        self._delay, self._window, self._line = delay_seconds, window_bytes, line
        self._memory = memoryview(bytearray(window_bytes))
        self._taken = self._given = self._due = self._acknowledged = 0  # bytes since the beginning
        self._arrivals: deque[tuple[float, int]] = deque()  # at this moment, all up to this byte
        self._acknowledgements: deque[tuple[float, int]] = deque()

    @property
    def empty(self) -> bool:
        return self._given == self._taken

    def room(self, now: float) -> memoryview:
        """Where the next bytes go. Nothing, if the window is full."""
        while self._acknowledgements and self._acknowledgements[0][0] <= now:
            self._acknowledged = self._acknowledgements.popleft()[1]
        return self._piece(self._taken, self._acknowledged + self._window)

    def took(self, nbytes: int, now: float) -> None:
        departed = now if self._line is None else self._line.departed(nbytes, now)
        self._taken += nbytes
        self._arrivals.append((departed + self._delay, self._taken))

    def due(self, now: float) -> memoryview:
        """What is at the other end by now, or the first part of it."""
        while self._arrivals and self._arrivals[0][0] <= now:
            self._due = self._arrivals.popleft()[1]
        return self._piece(self._given, self._due)

    def gave(self, nbytes: int, now: float) -> None:
        self._given += nbytes
        self._acknowledgements.append((now + self._delay, self._given))

    def next_due(self) -> float | None:
        """When the next bytes are due; none: nothing is on its way."""
        return self._arrivals[0][0] if self._arrivals else None

    def next_room(self) -> float | None:
        """When a full window opens; none: not before something is given."""
        return self._acknowledgements[0][0] if self._acknowledgements else None

    def _piece(self, first: int, last: int) -> memoryview:
        """From one byte to another, up to the end of the memory: the rest is a piece of its own."""
        start = first % self._window
        return self._memory[start : min(start + last - first, self._window)]
