"""Communication hook for DDP: averages gradients over a ring of its own, whatever backend the group has.

The ring's codecs and error feedback apply:

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
    """Numbers for bucket layouts: which parameters a bucket holds, in which order. Error feedback is kept per layout.

    DDP's own bucket index will not do: after its first step DDP rearranges the buckets, and several models may share
    one state. All ranks see the same layouts in the same order.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, ...], tuple[int, list[ref[torch.Tensor]]]] = {}
        self._count = 0

    def number_of(self, parameters: Sequence[torch.Tensor]) -> int:
        """Number of this layout: the same for the same parameters, a new one for new parameters."""
        key = tuple(map(id, parameters))
        number, alive = self._known.get(key, (-1, []))
        if number < 0 or any(parameter() is None for parameter in alive):  # a new tensor may reuse the id of a dead one
            number, self._count = self._count, self._count + 1
            self._known[key] = number, [ref(parameter) for parameter in parameters]
        return number


class RingState:
    """Ring of a hook, formed by the ranks of a group. Every rank of the group creates one."""

    def __init__(self, config: RingConfig | None = None, group: dist.ProcessGroup | None = None) -> None:
        """`group`: its ranks form the ring, by default all. `config`: by default that of the environment."""
        group = group or dist.group.WORLD
        if group is None:
            raise RuntimeError("RingState needs a process group: call torch.distributed.init_process_group before")
        store = PrefixStore("hook", group.get_group_store())
        self._group = form(store, rank=group.rank(), size=group.size(), config=config, timeout=dist.default_pg_timeout)
        self._layouts = Layouts()

    @property
    def ring(self) -> Ring:
        return self._group.ring

    @property
    def error(self) -> BaseException | None:
        """Error of the last bucket that failed."""
        return self._group.error

    def average(self, bucket: GradBucket) -> RingWork:
        parameters = bucket.parameters()
        return self._group.average(bucket.buffer(), lambda: f"bucket {self._layouts.number_of(parameters)}")

    def close(self) -> None:
        """Leave the ring. This also happens at exit."""
        self._group.shutdown()

    def __enter__(self) -> "RingState":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def allreduce_hook(state: RingState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket over the ranks of the state's ring. DDP reads the annotations, which must not be strings."""
    work = state.average(bucket)
    return work.get_future().then(_only_tensor)


def _only_tensor(future: "torch.futures.Future[list[torch.Tensor]]") -> torch.Tensor:
    return future.value()[0]
