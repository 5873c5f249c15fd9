"""Sizes and times, read and written as people do."""

import re

FLOAT_BYTES = 4  # no tensor is smaller
SIZE_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}


def parse_size(text: str) -> int:
    """Bytes of 4KB, 4KiB or 4096: a unit is a power of two here, however it is spelled."""
    found = re.fullmatch(r"(\d+)\s*([kmg]?)(i?b)?", text.strip().lower())
    nbytes = int(found[1]) * SIZE_UNITS[found[2]] if found else 0
    if nbytes < FLOAT_BYTES:
        raise SystemExit(f"bench: {text!r} is not a size; write for example 4KB, 1MB or 4096")
    return nbytes


def parse_counts(text: str) -> list[int]:
    """Whole numbers from 1 on, separated by commas."""
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        counts = []
    if not counts or min(counts) < 1:
        raise SystemExit(f"bench: {text!r} is not a list of whole numbers from 1 on; write for example 2,4,8")
    return counts


def check_rounds(rounds: int) -> int:
    if rounds < 1:
        raise SystemExit(f"bench: --rounds {rounds} is no round at all; write 1 or more")
    return rounds


def size_name(nbytes: int) -> str:
    if nbytes < 2**10:
        return f"{nbytes} B"
    return f"{nbytes // 2**20} MiB" if nbytes >= 2**20 else f"{nbytes // 2**10} KiB"


def duration(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"


def span(seconds: float) -> str:
    """How long work takes: 40 s, 3 min, 1 h 20 min."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
