"""The sets of processes that play cases: one nursery for the session, one set for each kind that is asked for.

And two ranks that are threads, for what needs no processes.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.torch_backend.sets import Nursery, Sets
from torch.distributed import HashStore

from ringwide.torch.init_group import form
from ringwide.torch.process_group import RingProcessGroup


@pytest.fixture(scope="session")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    with Nursery(tmp_path_factory.mktemp("interop")) as nursery:
        yield nursery


@pytest.fixture
def groups() -> Iterator[list[RingProcessGroup]]:
    store = HashStore()
    with ThreadPoolExecutor(2) as threads:
        both = list(threads.map(lambda rank: form(store, rank=rank, size=2), range(2)))
        yield both
        list(threads.map(RingProcessGroup.shutdown, both))


@pytest.fixture(scope="session")
def sets(nursery: Nursery) -> Sets:
    return Sets(nursery)
