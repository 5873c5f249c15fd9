"""DDP's gradients over a ring of their own, with its codecs and error feedback, whatever backend the group has.

state = ringwide.torch.RingState(ringwide.RingConfig(codec="int8", allow_lossy=True, error_feedback=True))
model.register_comm_hook(state, ringwide.torch.allreduce_hook)
"""

from collections.abc import Sequence
from types import TracebackType
from weakref import ref

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket, PrefixStore

from ringwide.config.ring_config import RingConfig
from ringwide.ring import Ring
from ringwide.torch.init_group import form
from ringwide.torch.work import RingWork


class Layouts:
    """Which parameters lie in a bucket, and in which order: what a codec still owes belongs to those.

    DDP's own number does not tell: after its first step it puts other parameters into the buckets, or the same ones in
    another order, and several models may have one state. All ranks see the same layouts in the same order.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, ...], tuple[int, list[ref[torch.Tensor]]]] = {}
        self._count = 0

    def number_of(self, parameters: Sequence[torch.Tensor]) -> int:
        """The same for the same parameters; a number that nobody has had for new ones."""
        key = tuple(map(id, parameters))
        number, alive = self._known.get(key, (-1, []))
        if number < 0 or any(parameter() is None for parameter in alive):  # others may get the id of one that is gone
            number, self._count = self._count, self._count + 1
            self._known[key] = number, [ref(parameter) for parameter in parameters]
        return number


class RingState:
    """The ring of a hook, formed by the ranks of a group. Every rank of the group makes one."""

    def __init__(self, config: RingConfig | None = None, group: dist.ProcessGroup | None = None) -> None:
        """`group`: whose ranks take part, by default all. `config`: by default that of the environment."""
        group = group or dist.group.WORLD
        if group is None:
            raise RuntimeError("RingState needs a group to meet in: call torch.distributed.init_process_group before")
        store = PrefixStore("hook", group.get_group_store())
        self._group = form(store, rank=group.rank(), size=group.size(), config=config, timeout=dist.default_pg_timeout)
        self._layouts = Layouts()

    @property
    def ring(self) -> Ring:
        return self._group.ring

    @property
    def error(self) -> BaseException | None:
        """What the last bucket that failed was raised with."""
        return self._group.error

    def average(self, bucket: GradBucket) -> RingWork:
        parameters = bucket.parameters()
        return self._group.average(bucket.buffer(), lambda: f"bucket {self._layouts.number_of(parameters)}")

    def close(self) -> None:
        """Leave the ring. At the end of the program it is left anyway."""
        self._group.shutdown()

    def __enter__(self) -> "RingState":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def allreduce_hook(state: RingState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Averages a bucket over the ranks of the state's ring. DDP reads the annotations, and wants no strings there."""
    work = state.average(bucket)
    return work.get_future().then(_only_tensor)


def _only_tensor(future: "torch.futures.Future[list[torch.Tensor]]") -> torch.Tensor:
    return future.value()[0]
