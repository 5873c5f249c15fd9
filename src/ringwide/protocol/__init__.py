"""The rules of the wire and of each algorithm, as pure code: no I/O, no clock, no asyncio, no numpy."""
