"""DDP's gradients over a ring of their own, with its codecs and error feedback, whatever backend the group has.

state = ringwide.interop.RingState(ringwide.RingConfig(codec="int8", allow_lossy=True, error_feedback=True))
model.register_comm_hook(state, ringwide.interop.allreduce_hook)
"""

from types import TracebackType

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket, PrefixStore

from ringwide.config import RingConfig
from ringwide.interop.creation import form
from ringwide.interop.work import RingWork
from ringwide.ring import Ring


class RingState:
    """The ring of a hook, formed by the ranks of a group. Every rank of the group makes one."""

    def __init__(self, config: RingConfig | None = None, group: dist.ProcessGroup | None = None) -> None:
        """`group`: whose ranks take part, by default all. `config`: by default that of the environment."""
        group = group or dist.group.WORLD
        if group is None:
            raise RuntimeError("RingState needs a group to meet in: call torch.distributed.init_process_group before")
        store = PrefixStore("hook", group.get_group_store())
        self._group = form(store, rank=group.rank(), size=group.size(), config=config)

    @property
    def ring(self) -> Ring:
        return self._group.ring

    @property
    def error(self) -> BaseException | None:
        """What the last bucket that failed was raised with."""
        return self._group.error

    def average(self, bucket: GradBucket) -> RingWork:
        return self._group.average(bucket.buffer(), f"bucket {bucket.index()}")

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
