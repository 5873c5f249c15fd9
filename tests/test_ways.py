"""A call passes few files, and docs/design.md names them."""

import re

from tests.marked import DESIGN, marked
from tests.ways import DDP, SMALL, ddp_bucket, small_allreduce

MOST_SMALL, MOST_DDP = 10, 18
TRIES = 8

RENEW = "docs/design.md names other files: run `python -m tests.ways`"


def documented(name: str) -> list[str]:
    return re.findall(r"`([\w/]+\.py)`", marked(DESIGN, name))


async def test_a_small_allreduce_passes_the_files_that_the_document_names() -> None:
    files = await small_allreduce()
    assert files == documented(SMALL), RENEW
    assert len(files) <= MOST_SMALL


def test_a_bucket_of_ddp_passes_the_files_that_the_document_names() -> None:
    # Three threads take part. Where one of them is stopped, a timer may come in between: that is another way.
    ways = [sorted(ddp_bucket())]
    while sorted(documented(DDP)) != ways[-1] and len(ways) < TRIES:
        ways.append(sorted(ddp_bucket()))
    assert ways[-1] == sorted(documented(DDP)), RENEW
    assert len(documented(DDP)) <= MOST_DDP
