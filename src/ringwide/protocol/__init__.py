"""THE RULES: what travels, in which pieces, and what an arrival means. No I/O, no clock, no asyncio, no numpy."""
