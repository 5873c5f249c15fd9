"""Runner of torch's own test suite for one backend and one number of ranks. Started by torch_suite.py.

python -m tests.integrations.torch_suite_runner BACKEND RANKS SECONDS < names of tests > JSON lines

Many of the tests are guarded: they run for gloo, or for backends that a table lists. The guards are evaluated when the
module is imported, so it is imported as for gloo, and the backend is exchanged afterwards. What else differs:

- Ranks are forked from this process, which has imported torch already. torch's own runner starts each from nothing.
- Tests that need a GPU, where there is none, are skipped without starting ranks that would find that out.
- Tests for more than two ranks run with three. torch skips them below eight, to spare its CI.
- `dist.monitored_barrier` refuses every backend whose name is not gloo. Here it calls the method of the group.
"""

import importlib
import io
import json
import os
import re
import shutil
import sys
import tempfile
import unittest
from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ringwide.experiment.forkserver import die_with_parent

_TESTING = "torch.testing._internal"
_ERROR_LINE = re.compile(r"^[A-Za-z_][\w.]*(?:: |$)")


class LikeGloo(str):
    """Name of a backend that passes for gloo in the comparisons of the suite."""

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) or other == "gloo"

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


def suite_for(backend: str, ranks: int, seconds: int) -> type[unittest.TestCase]:
    """Test case of torch with this backend. A test that takes longer than `seconds` is ended, and has failed."""
    os.environ.update(
        BACKEND="gloo", WORLD_SIZE=str(ranks), INIT_METHOD="file://", DISTRIBUTED_TESTS_DEFAULT_TIMEOUT=str(seconds)
    )
    sharing: Any = importlib.import_module(f"{_TESTING}.common_distributed")
    sharing.TIMEOUT_OVERRIDE.clear()
    sharing.skip_if_small_worldsize = _for_three_ranks
    if not torch.cuda.is_available():
        no_gpu = unittest.skip("there is no GPU")
        sharing.skip_if_no_gpu = no_gpu
        sharing.skip_if_lt_x_gpu = lambda *_, **__: no_gpu
    module = importlib.import_module(f"{_TESTING}.distributed.distributed_test")
    if backend != "gloo":
        _exchange_backend(module, backend)
    return _forking(module, backend)


def _for_three_ranks(test: Callable[..., object]) -> Callable[..., object]:
    @wraps(test)
    def run(case: Any) -> object:
        if int(case.world_size) < 3:
            raise unittest.SkipTest("for three ranks and more")
        return test(case)

    return run


def _exchange_backend(module: Any, backend: str) -> None:
    os.environ["BACKEND"] = backend
    module.BACKEND = LikeGloo(backend)
    for names in ("PROFILING", "CUDA_PROFILING", "SEND_RECV_PROFILING"):
        getattr(module, f"{names}_SUPPORTED_BACKENDS").append(backend)
    for table in module.DistTestCases.backend_feature.values():
        table.add(backend)
    module.dist.monitored_barrier = monitored_barrier


def monitored_barrier(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> None:
    """As torch's own, without its look at the backend's name."""
    group = dist.group.WORLD if group is None else group
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        return
    if isinstance(timeout, int | float):
        timeout = timedelta(seconds=timeout)
    group.monitored_barrier(*(() if timeout is None else (timeout,)), wait_all_ranks=wait_all_ranks)


def _forking(module: Any, backend: str) -> type[unittest.TestCase]:
    class TorchSuite(module.TestDistBackend, module.DistributedTest._DistTestBase):  # type: ignore[misc]
        """The suite. Its ranks are forked, and ended with their test."""

        def setUp(self) -> None:
            super().setUp()
            self.meeting = Path(tempfile.mkdtemp(prefix="torch-suite-"))
            module.INIT_METHOD = f"file://{self.meeting}/store"
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

        def tearDown(self) -> None:
            for process in self.processes:
                process.kill()
                process.join()
            Path(self.file_name).unlink(missing_ok=True)
            shutil.rmtree(self.meeting, ignore_errors=True)
            super().tearDown()

        @classmethod
        def _run(cls, rank: int, test_name: str, file_name: str, pipe: Any, **settings: Any) -> None:
            die_with_parent(os.getppid())
            os.dup2(2, 1)
            torch.set_num_threads(1)
            super()._run(rank, test_name, file_name, pipe, **settings)

        def run_test(self, test_name: str, pipe: Any) -> None:
            """Run it in a rank whose group exists. A backend that passes for gloo must not get gloo's."""
            world: Any = dist.group.WORLD
            if world.name() != backend:
                raise RuntimeError(f"the group is that of {world.name()}, and the test is for {backend}")
            super().run_test(test_name, pipe)

    return TorchSuite


class Outcomes(unittest.TestResult):
    """How each test went, written down as soon as it is known."""

    def __init__(self, out: io.TextIOBase) -> None:
        super().__init__()
        self._out = out

    def _say(self, test: unittest.TestCase, outcome: str, error: str = "") -> None:
        name = test.id().rpartition(".")[2]
        self._out.write(json.dumps({"test": name, "outcome": outcome, "error": error}) + "\n")
        self._out.flush()

    def addSuccess(self, test: unittest.TestCase) -> None:
        self._say(test, "passed")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self._say(test, "skipped", reason)

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        self._say(test, "failed", _last_line(str(err[1])))
        print(f"--- {test.id()}\n{err[1]}", file=sys.stderr)

    addFailure = addError


def _last_line(text: str) -> str:
    """Last line that names an exception; below it there may be a stack of C++."""
    lines = [line for line in text.splitlines() if _ERROR_LINE.match(line)] or text.splitlines() or [""]
    return lines[-1][:300]


def main(backend: str, ranks: int, seconds: int) -> None:
    die_with_parent(os.getppid())
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what tests print is no result
    kind = suite_for(backend, ranks, seconds)
    wanted = sys.stdin.read().split()
    names = [name for name in unittest.TestLoader().getTestCaseNames(kind) if not wanted or name in wanted]
    unittest.TestSuite(map(kind, names)).run(Outcomes(out))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
