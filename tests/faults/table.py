"""The table of `make faults`."""

from collections.abc import Sequence

from tests.faults.outcome import ERROR, Bar, Tally

HEADINGS = ("row", "runs", "good", "p50", "p99", "max", "bar", "")


def table(tallies: Sequence[Tally]) -> str:
    rows = [HEADINGS, *[_row(tally) for tally in tallies]]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _row(tally: Tally) -> tuple[str, ...]:
    times = [_seconds(tally.quantile(share)) for share in (0.5, 0.99, 1)] if tally.times() else ["", "", ""]
    bar = ", ".join(_bar(bar, tally) for bar in tally.bars)
    verdict = "met" if tally.met else "kept, but late" if tally.kept else "BROKEN"
    return (tally.name, str(tally.count), str(tally.good), *times, bar, verdict)


def _bar(bar: Bar, tally: Tally) -> str:
    """What is not in the columns before it is said here."""
    return str(bar) if bar.of == ERROR else f"{bar} ({tally.quantile(bar.share, bar.of):.2f})"


def _seconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"
