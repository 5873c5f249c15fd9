"""The sets of processes that play cases: one nursery for the session, one set for each kind that is asked for."""

from collections.abc import Iterator

import pytest
from tests.torch_backend.sets import Nursery, Sets


@pytest.fixture(scope="session")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    with Nursery(tmp_path_factory.mktemp("interop")) as nursery:
        yield nursery


@pytest.fixture(scope="session")
def sets(nursery: Nursery) -> Sets:
    return Sets(nursery)
