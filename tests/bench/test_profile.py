"""The shares of a profile: what a symbol belongs to."""

from bench.profile import group_of, grouped, markdown

REPORT = """
# Overhead  Shared Object      Symbol
    40.00%  libc.so.6          [.] __memmove_avx_unaligned_erms
    10.00%  _multiarray.so     [.] FLOAT_add_X86_V3
    20.00%  [kernel.kallsyms]  [k] _copy_to_iter
     5.00%  [kernel.kallsyms]  [k] _raw_spin_unlock_irqrestore
     5.00%  [kernel.kallsyms]  [k] tcp_sendmsg_locked
     2.00%  [kernel.kallsyms]  [k] clear_page_erms
    18.00%  libpython3.11.so   [.] _PyEval_EvalFrameDefault
"""


def test_every_line_is_in_one_group() -> None:
    assert grouped(REPORT) == {
        "copies in user space": 40.0,
        "adding": 10.0,
        "kernel: copies": 20.0,
        "kernel: waking and scheduling": 5.0,
        "kernel: network": 5.0,
        "kernel: the rest": 2.0,
        "Python and the rest": 18.0,
    }


def test_the_kernel_and_libraries_have_groups_of_their_own() -> None:
    assert group_of(True, "memmove") == "kernel: the rest"
    assert group_of(False, "tcp_something_of_a_library") == "Python and the rest"


def test_the_table_has_a_row_for_each_cell() -> None:
    cell = {"ranks": 2, "bytes": 2**20, "way": "tcp", "processor_seconds": 0.0012, "shares": grouped(REPORT)}
    assert "| 2 | 1 MiB | tcp | 1.20 ms | 40 % | 10 % | 20 % | 5 % | 5 % | 2 % | 18 % |" in markdown({"cells": [cell]})
