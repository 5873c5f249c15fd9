import mmap
from pathlib import Path

import pytest

from ringwide.observe import statistics
from ringwide.observe.statistics import peak_bytes, shared_out_bytes

MIB = 1024 * 1024


def test_memory_that_is_taken_is_seen_and_the_peak_stays() -> None:
    before = shared_out_bytes()
    # New for sure, while an allocator may still have had so much.
    taken = mmap.mmap(-1, 64 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for _ in range(64):
        taken.write(b"x" * MIB)
    during = shared_out_bytes()
    assert 60 * MIB < during - before < 80 * MIB
    assert peak_bytes() >= during - MIB  # the kernel counts pages a little late
    taken.close()
    assert shared_out_bytes() < during - 60 * MIB
    assert peak_bytes() >= during - MIB


def test_what_siblings_share_with_their_parent_is_counted_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 100 kB of its own and 600 shared by two siblings and their parent: a third for each, 300 for each sibling.
    (tmp_path / "smaps").write_text("Rss: 700 kB\nPss: 300 kB\nPrivate_Clean: 30 kB\nPrivate_Dirty: 70 kB\n")
    monkeypatch.setattr(statistics, "_SMAPS", tmp_path / "smaps")
    assert shared_out_bytes() == 300 * 1024
    assert shared_out_bytes(siblings=2) == 400 * 1024
    assert statistics.resident_bytes() == 700 * 1024


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Rss:  7 kB\nPss:                1234 kB\nPss_Dirty: 99 kB\n", 1234 * 1024),
        ("Rss:  7 kB\nPss_Dirty: 99 kB\nSwapPss: 3 kB\n", 0),
        ("", 0),
    ],
)
def test_only_the_line_of_that_name_counts(tmp_path: Path, text: str, found: int) -> None:
    (tmp_path / "smaps").write_text(text)
    assert statistics._kib_of("Pss", tmp_path / "smaps") == found


def test_where_nobody_tells_it_is_not_known(tmp_path: Path) -> None:
    assert statistics._kib_of("Pss", tmp_path / "missing") == 0
