"""Interface of a process group beside its operations: names, device, timeout, backend object, monitored barrier.

torch's C++ groups hand much of this on to a `Backend`, one for each device. A group that is written in Python is its
own backend, so here is what torch and its users ask the backend of gloo for.
"""

import time
from collections.abc import Iterable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend, ProcessGroupGloo, Store

from ringwide.ring import Ring

_NAME = "ringwide"
_CPU = torch.device("cpu")
_LOOK_SECONDS = (0.001, 0.02)
_NO_TIMEOUT = timedelta(0)
_NAMES = {"opts", "root", "op", "timeout"}
_BY_ITSELF = (int, timedelta, type(None), dist.ReduceOp, dist.ReduceOp.RedOpType)


def options_of(*given: Any, **named: Any) -> Any:
    """Options of an operation, in both forms that torch has: one object; or `root`, `op` and `timeout`, each by itself.

    torch tells them apart by their types, and so must we.
    """
    if len(given) == 1 and not named and not isinstance(given[0], _BY_ITSELF):
        return given[0]
    unknown = named.keys() - _NAMES
    if unknown:
        raise TypeError(
            f"unknown option {', '.join(sorted(unknown))}; an operation takes opts, or root, op and timeout"
        )
    if "opts" in named:
        return options_of(named["opts"])
    options = SimpleNamespace(rootRank=None, reduceOp=dist.ReduceOp.SUM, timeout=_NO_TIMEOUT)
    for value in (*given, *named.values()):
        if isinstance(value, timedelta):
            options.timeout = value
        elif isinstance(value, int):
            options.rootRank = value
        elif value is not None:
            options.reduceOp = value
    return options


class GroupInterface(dist.ProcessGroup):
    """Process group without its operations."""

    def __init__(self, ring: Ring, store: Store) -> None:
        super().__init__(ring.rank, ring.size)  # type: ignore[call-arg]
        self.ring, self._store = ring, store
        self._timeout = timedelta(seconds=ring.config.collective_timeout_seconds)
        self._name = self._description = ""
        self._barriers = 0  # monitored ones, so far

    def name(self) -> str:
        return _NAME

    getBackendName = _get_backend_name = name

    @property
    def group_name(self) -> str:  # DeviceMesh and FSDP look their groups up by it
        return self._name

    def _set_group_name(self, name: str) -> None:
        self._name = name

    @property
    def group_desc(self) -> str:
        return self._description

    def _set_group_desc(self, description: str) -> None:
        self._description = description

    def getGroupName(self) -> str:
        return self._name

    def get_group_store(self) -> Store:
        return self._store

    @property
    def _device_types(self) -> list[torch.device]:
        return [_CPU]

    # -- backend object

    def _get_backend(self, device: torch.device) -> "BackendView":
        if device.type != "cpu":
            raise RuntimeError(f"the backend ringwide is for CPU tensors; it has no backend for the device {device}")
        return BackendView(self)

    def _has_hooks(self) -> bool:
        return False

    def _wait_for_pending_works(self) -> None:
        """Nothing to do: only hooks would be waited for."""

    def _backend_id(self, backend_type: object) -> int:
        return id(self)

    @property  # type: ignore[misc]
    def use_pg_for_symm_mem_rendezvous(self) -> bool:
        return False

    def _register_on_completion_hook(self, hook: object) -> None:
        raise NotImplementedError("the backend ringwide has no completion hooks; use work.get_future().then(...)")

    def split_group(self, *_: Any, **__: Any) -> None:
        raise NotImplementedError("the backend ringwide does not split groups; use torch.distributed.new_group")

    def merge_remote_group(self, *_: Any, **__: Any) -> None:
        raise NotImplementedError("the backend ringwide does not merge groups; use torch.distributed.new_group")

    def _set_sequence_number_for_group(self) -> None:
        """Nothing to do: all ranks count from the beginning of their ring."""

    def _get_sequence_number_for_group(self) -> int:
        """Number of collectives so far."""
        return self.ring.statistics().collectives

    # -- timeout

    @property
    def timeout(self) -> timedelta:
        """How long an operation may stand still."""
        return self._timeout

    def set_timeout(self, timeout: timedelta) -> None:
        self.ring.set_timeout(timeout.total_seconds())
        self._timeout = timeout

    _set_default_timeout = set_timeout

    # -- monitored barrier

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """Barrier that names ranks that have not come in time, with the texts of gloo. By default the group's timeout.

        `torch.distributed.monitored_barrier` refuses every backend but gloo; this method is what it would call. It
        meets in the store, not in the ring: it works however the ring is.
        """
        self._barriers += 1
        allowed = self._timeout if timeout is None else timeout
        meeting = _Meeting(self._store, self.ring.rank, self.ring.size, self._barriers, allowed.total_seconds())
        if self.ring.rank == 0:
            meeting.lead(wait_all_ranks)
        else:
            meeting.follow()


class BarrierTimeout(RuntimeError, TimeoutError):
    """Ranks did not come to a monitored barrier in time."""


class _Meeting:
    """One monitored barrier in a store: each rank notes that it is there, and rank 0 what became of it."""

    def __init__(self, store: Store, rank: int, size: int, number: int, seconds: float) -> None:
        self._store, self._rank, self._size, self._number = store, rank, size, number
        self._milliseconds, self._until = round(seconds * 1000), time.monotonic() + seconds

    def _key(self, what: object, number: int) -> str:
        return f"ringwide/monitored barrier {number}/{what}"

    def lead(self, wait_all_ranks: bool) -> None:
        if self._milliseconds <= 0:
            raise BarrierTimeout(f"Rank 0 timed out in monitoredBarrier after {self._milliseconds} ms")
        absent = self._absent(all_of_them=wait_all_ranks)
        verdict = ""
        if absent:
            ranks = f"Rank{'s' if wait_all_ranks else ''} {', '.join(map(str, absent))}"
            verdict = f"{ranks} failed to pass monitoredBarrier in {self._milliseconds} ms"
        self._store.set(self._key("verdict", self._number), f"verdict: {verdict}")
        if verdict:
            raise BarrierTimeout(f"[Rank 0]: {verdict}")
        self._forget()

    def _absent(self, *, all_of_them: bool) -> list[int]:
        """Ranks that do not come in time; if not all of them are wanted, the first one."""
        absent = []
        for rank in range(1, self._size):
            if not self._wait_for(self._key(rank, self._number)):
                absent.append(rank)
                if not all_of_them:
                    break
        return absent

    def _forget(self) -> None:
        """All are here, so nobody needs their notes any more, nor what became of the barrier before this one."""
        for rank in range(1, self._size):
            self._store.delete_key(self._key(rank, self._number))
        self._store.delete_key(self._key("verdict", self._number - 1))

    def follow(self) -> None:
        self._store.set(self._key(self._rank, self._number), "here")
        key = self._key("verdict", self._number)
        found = self._store.get(key).decode() if self._wait_for(key) else f"verdict: none in {self._milliseconds} ms"
        verdict = found.removeprefix("verdict: ")
        if verdict:
            raise BarrierTimeout(
                f"[Rank {self._rank}]: Rank {self._rank} successfully reached monitoredBarrier, but received errors "
                f"while waiting for send/recv from rank 0. Please check rank 0 logs for faulty rank. ({verdict})"
            )

    def _wait_for(self, key: str) -> bool:
        """Look again and again: a wait inside the store could not be interrupted, and would keep others from it."""
        pause, longest = _LOOK_SECONDS
        while not self._store.check([key]):
            left = self._until - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(pause, left))
            pause = min(2 * pause, longest)
        return True


class BackendView:
    """Backend of a group, as torch expects one: its operations are those of the group."""

    supports_splitting = supports_coalescing = supports_shrinking = supports_time_estimate = False

    def __init__(self, group: GroupInterface) -> None:
        self._group = group

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """`_set_pg_timeout` sets the timeout of what is an instance of this class, and asks for nothing else of it."""
        return ProcessGroupGloo

    def __repr__(self) -> str:
        return f"<BackendView of {self._group!r}>"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group, name)

    def __eq__(self, other: object) -> bool:
        return type(other) is BackendView and self._group is other._group

    def __hash__(self) -> int:
        return hash(self._group)

    @property
    def options(self) -> Backend.Options:
        """What holds now. To change the timeout, set it: `_set_default_timeout`."""
        options = Backend.Options(_NAME, self._group.timeout)
        options.group_name = self._group.group_name
        options.global_ranks_in_group = list(self._global_ranks())
        return options

    def _global_ranks(self) -> Iterable[int]:
        try:
            return dist.get_process_group_ranks(self._group)
        except (KeyError, ValueError):  # torch does not know this group: that of a communication hook, for example
            return range(self._group.size())

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        return False
