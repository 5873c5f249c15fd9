import mmap
from pathlib import Path

import pytest
import torch

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
    (tmp_path / "smaps_rollup").write_text("Rss: 700 kB\nPss: 300 kB\nPrivate_Clean: 30 kB\nPrivate_Dirty: 70 kB\n")
    monkeypatch.setattr(statistics, "_PROCESS", tmp_path)
    assert shared_out_bytes() == 300 * 1024
    assert shared_out_bytes(siblings=2) == 400 * 1024


SMAPS = """\
7f00-7f10 r-xp 00000000 00:01 7    /lib/torch/lib/libtorch_cpu.so
Pss:  100 kB
Private_Clean:  40 kB
Private_Dirty:  0 kB
7f10-7f20 rw-p 00000000 00:00 0    [heap]
Pss:  999 kB
7f20-7f30 r--p 00000000 00:01 8    /lib/torch/lib/libc10 with a space.so
Pss:  20 kB
Private_Clean:  20 kB
7f30-7f40 r--p 00000000 00:01 9    /lib/torchvision/x.so
Pss:  500 kB
"""


def test_the_part_of_some_files_is_counted_in_the_same_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "smaps").write_text(SMAPS)
    monkeypatch.setattr(statistics, "_PROCESS", tmp_path)
    assert shared_out_bytes(of_files_in=Path("/lib/torch")) == 120 * 1024
    assert shared_out_bytes(siblings=2, of_files_in=Path("/lib/torch")) == 150 * 1024
    assert shared_out_bytes(of_files_in=Path("/lib/other")) == 0


def test_the_libraries_of_torch_are_a_part_of_this_process() -> None:
    directory = Path(torch.__file__).parent
    assert MIB < shared_out_bytes(of_files_in=directory) < shared_out_bytes()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Rss:  7 kB\nPss:                1234 kB\nPss_Dirty: 99 kB\n", 1234 * 1024),
        ("Rss:  7 kB\nPss_Dirty: 99 kB\nSwapPss: 3 kB\n", 0),
        ("", 0),
    ],
)
def test_only_the_line_of_that_name_counts(text: str, found: int) -> None:
    assert statistics._bytes_in(text, "Pss") == found


def test_where_nobody_tells_it_is_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "_PROCESS", tmp_path / "missing")
    assert (shared_out_bytes(), shared_out_bytes(of_files_in=tmp_path), peak_bytes()) == (0, 0, 0)
