"""A group of torch.distributed whose members form a ring.

torch calls these methods, some by an old and some by a new name. Each starts the ring's own operation on the background
loop and returns at once with a `RingWork`. Nothing raises here: see `work.py`.
"""

import sys
from collections.abc import Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

from ringwide.background import Background
from ringwide.interop.interrupts import end_calls_at_interrupts
from ringwide.interop.tensors import alike, as_bits, as_numbers, operation_of, operation_on, require_places, write
from ringwide.interop.work import RingWork
from ringwide.pending import Pending
from ringwide.ring import Ring

Tensor = torch.Tensor
Call = Coroutine[Any, Any, Any]


class RingProcessGroup(dist.ProcessGroup):
    """One rank's side of a group. `ring` is its ring; `error` what the last operation that failed was raised with."""

    def __init__(
        self, ring: Ring, membership: AbstractAsyncContextManager[Ring], store: Store, behind: Background
    ) -> None:
        super().__init__(ring.rank, ring.size)  # type: ignore[call-arg]
        self.ring, self.error = ring, None
        self._membership, self._store, self._behind = membership, store, behind
        self._name = self._description = ""
        self._together: list[Pending[Any]] | None = None  # operations that were asked for as one
        behind.close_at_exit(self, self._leave)
        end_calls_at_interrupts(behind)

    error: BaseException | None

    def __repr__(self) -> str:
        return f"<RingProcessGroup {self._name!r}: {self.ring!r}>"

    # -- sums

    def allreduce(self, tensors: Any, opts: Any = None) -> RingWork:
        given = _as_list(tensors)
        return self._work(self._allreduce(given, _op_of(opts)), given)

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> RingWork:
        return self.allreduce(tensors, opts)

    async def _allreduce(self, tensors: list[Tensor], op: Any) -> None:
        word = operation_on(tensors, op)
        numbers = [as_numbers(tensor, word) for tensor in tensors]
        await self.ring.allreduce(numbers[0] if len(numbers) == 1 else numbers, word)

    def average(self, tensor: Tensor, bucket: str) -> RingWork:
        """For the hook: the bucket's name is that of its error feedback."""
        return self._work(self.ring.allreduce(tensor, "mean", bucket=bucket), [tensor])

    def reduce(self, tensors: Any, opts: Any) -> RingWork:
        given = _as_list(tensors)
        return self._work(self._reduce(given, opts.reduceOp, opts.rootRank), given)

    async def _reduce(self, tensors: list[Tensor], op: Any, root: int) -> None:
        word = operation_on(tensors, op)
        await self.ring.reduce([as_numbers(tensor, word) for tensor in tensors], root, word)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> RingWork:
        return self._work(self._reduce_scatter(output, input, _op_of(opts)), [output])

    _reduce_scatter_base = reduce_scatter_tensor = reduce_scatter_single

    async def _reduce_scatter(self, output: Tensor, input: Tensor, op: Any) -> None:
        word = operation_of(op, input.dtype)
        if output.numel() * self.ring.size != input.numel():
            raise ValueError(
                f"reduce_scatter of {input.numel()} elements over {self.ring.size} ranks into {output.numel()}: "
                "the input must have as many elements for each rank as the output has"
            )
        await self.ring.reduce_scatter(as_numbers(input, word), word, into=as_numbers(output, word))

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> RingWork:
        op = _op_of(opts)
        pairs = zip(outputs, inputs, strict=True)
        return self._work_of_all([self._reduce_scatter(output, input, op) for output, input in pairs], list(outputs))

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> RingWork:
        lists = inputs if _is_nested(inputs) else [inputs]
        op, targets = _op_of(opts), _as_list(outputs)
        pairs = zip(targets, lists, strict=True)
        return self._work_of_all([self._reduce_scatter_list(output, parts, op) for output, parts in pairs], targets)

    async def _reduce_scatter_list(self, output: Tensor, parts: list[Tensor], op: Any) -> None:
        flat = torch.cat([part.reshape(-1) for part in parts])
        if alike([output, *parts]):
            await self._reduce_scatter(output, flat, op)
            return
        require_places([output], flat.dtype, "reduce_scatter")
        await self._allreduce([flat], op)  # shares of different lengths are not the ring's
        write(output, flat.split([part.numel() for part in parts])[self.ring.rank])

    # -- copies

    def broadcast(self, tensors: Any, opts: Any) -> RingWork:
        given = _as_list(tensors)
        root = opts if isinstance(opts, int) else opts.rootRank
        return self._work(self._broadcast(given, root), given)

    async def _broadcast(self, tensors: list[Tensor], root: int) -> None:
        await self.ring.broadcast([as_bits(tensor) for tensor in tensors], root)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> RingWork:
        return self._work(self._all_gather(output, input), [output])

    _allgather_base = all_gather_into_tensor = all_gather_single

    async def _all_gather(self, output: Tensor, input: Tensor) -> None:
        if output.numel() != self.ring.size * input.numel():
            raise ValueError(
                f"all_gather of {input.numel()} elements over {self.ring.size} ranks into {output.numel()}: "
                "the output must have room for one input of each rank"
            )
        await self.ring.all_gather(as_bits(input), into=as_bits(output))

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> RingWork:
        pairs = zip(outputs, inputs, strict=True)
        return self._work_of_all([self._all_gather(output, input) for output, input in pairs], list(outputs))

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> RingWork:
        lists = outputs if _is_nested(outputs) else [outputs]
        pairs = zip(lists, _as_list(inputs), strict=True)
        calls = [self._all_gather_list(parts, input) for parts, input in pairs]
        return self._work_of_all(calls, [part for parts in lists for part in parts], by_hand=False)

    allgather_coalesced = allgather

    async def _all_gather_list(self, outputs: list[Tensor], input: Tensor) -> None:
        self._require_one_each(outputs, "all_gather")
        if alike([input, *outputs]):
            require_places(outputs, input.dtype, "all_gather")
            for output, part in zip(outputs, await self.ring.all_gather(as_bits(input)), strict=True):
                write(as_bits(output), part)
        else:
            await self._exchange("all_gather", [input] * self.ring.size, outputs)

    def gather(self, outputs: Any, inputs: Any, opts: Any) -> RingWork:
        (input,) = _as_list(inputs)
        lists = outputs if not outputs or _is_nested(outputs) else [outputs]
        targets = lists[0] if lists and self.ring.rank == opts.rootRank else []
        return self._long_work(self._gather(targets, input, opts.rootRank), list(targets))

    async def _gather(self, outputs: list[Tensor], input: Tensor, root: int) -> None:
        if self.ring.rank == root:
            self._require_one_each(outputs, "gather")
        outgoing = [input if rank == root else None for rank in range(self.ring.size)]
        await self._exchange(f"gather to rank {root}", outgoing, outputs or [None] * self.ring.size)

    def scatter(self, outputs: Any, inputs: Any, opts: Any) -> RingWork:
        (output,) = _as_list(outputs)
        lists = inputs if not inputs or _is_nested(inputs) else [inputs]
        parts = lists[0] if lists and self.ring.rank == opts.rootRank else []
        return self._long_work(self._scatter(output, parts, opts.rootRank), [output])

    async def _scatter(self, output: Tensor, parts: list[Tensor], root: int) -> None:
        if self.ring.rank == root:
            self._require_one_each(parts, "scatter")
        incoming = [output if rank == root else None for rank in range(self.ring.size)]
        await self._exchange(f"scatter from rank {root}", parts or [None] * self.ring.size, incoming)

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> RingWork:
        return self._long_work(self._all_to_all(outputs, inputs), list(outputs))

    async def _all_to_all(self, outputs: list[Tensor], inputs: list[Tensor]) -> None:
        self._require_one_each(inputs, "all_to_all")
        self._require_one_each(outputs, "all_to_all")
        await self._exchange("all_to_all", inputs, outputs)

    def all_to_all_single(
        self, output: Tensor, input: Tensor, output_splits: list[int], input_splits: list[int], opts: Any = None
    ) -> RingWork:
        return self._long_work(self._all_to_all_single(output, input, output_splits, input_splits), [output])

    alltoall_base = all_to_all_single

    async def _all_to_all_single(
        self, output: Tensor, input: Tensor, output_splits: list[int], input_splits: list[int]
    ) -> None:
        outputs, inputs = self._split(output, output_splits), self._split(input, input_splits)
        await self._exchange("all_to_all_single", inputs, outputs)

    def _split(self, tensor: Tensor, sizes: list[int]) -> list[Tensor]:
        if not sizes and tensor.shape[0] % self.ring.size:
            raise ValueError(f"all_to_all_single: {tensor.shape[0]} rows cannot be split evenly over {self.ring.size}")
        return list(tensor.split(sizes or [tensor.shape[0] // self.ring.size] * self.ring.size))

    async def _exchange(self, what: str, outgoing: Sequence[Tensor | None], incoming: Sequence[Tensor | None]) -> None:
        def bits(tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
            return [None if tensor is None else as_bits(tensor) for tensor in tensors]

        await self.ring.exchange(bits(outgoing), bits(incoming), what)

    def _require_one_each(self, tensors: Sequence[Tensor], what: str) -> None:
        if len(tensors) != self.ring.size:
            raise ValueError(f"{what}: {len(tensors)} tensors for {self.ring.size} ranks; give one for each rank")

    # -- messages

    def send(self, tensors: list[Tensor], to: int, tag: int) -> RingWork:
        (tensor,) = tensors
        return self._long_work(self._send(tensor, to, tag), [tensor])

    async def _send(self, tensor: Tensor, to: int, tag: int) -> None:
        await self.ring.send(as_bits(tensor), to, tag)

    def recv(self, tensors: list[Tensor], source: int, tag: int) -> RingWork:
        (tensor,) = tensors
        return self._long_work(self._receive(tensor, source, tag), [tensor])

    def recv_anysource(self, tensors: list[Tensor], tag: int) -> RingWork:
        (tensor,) = tensors
        return self._long_work(self._receive(tensor, None, tag), [tensor])

    async def _receive(self, tensor: Tensor, source: int | None, tag: int) -> int:
        return await self.ring.receive(as_bits(tensor), source, tag)

    def barrier(self, opts: Any = None) -> RingWork:
        return self._work(self.ring.barrier(), [])

    # -- several as one

    def _start_coalescing(self, device: torch.device) -> None:
        self._together = []

    def _end_coalescing(self, device: torch.device) -> RingWork:
        together, self._together = self._together or [], None
        return RingWork(together, [])

    def _work(self, call: Call, tensors: list[Tensor]) -> RingWork:
        return self._work_of_all([call], tensors)

    def _long_work(self, call: Call, tensors: list[Tensor]) -> RingWork:
        """One of several parts, with deadlines of its own."""
        return self._work_of_all([call], tensors, by_hand=False)

    def _work_of_all(self, calls: Sequence[Call], tensors: list[Tensor], *, by_hand: bool = True) -> RingWork:
        pendings = [self._behind.start(call, by_hand=by_hand, on_error=self._note) for call in calls]
        if self._together is not None:
            self._together += pendings
        return RingWork(pendings, tensors)

    def _note(self, error: BaseException) -> None:
        self.error = error

    # -- what torch asks of every group

    def rank(self) -> int:
        return self.ring.rank

    def size(self) -> int:
        return self.ring.size

    getRank, getSize = rank, size  # the names by which C++ asks

    def name(self) -> str:
        return "ringwide"

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
        return [torch.device("cpu")]

    # -- the end

    def shutdown(self) -> None:
        """Leave the ring: the others hear a goodbye, and from a `finally` because of what."""
        self._behind.close_now(self, sys.exc_info()[1])

    def abort(self) -> None:
        self.shutdown()

    async def _leave(self, error: BaseException | None) -> None:
        with suppress(BaseException) if error is not None else nullcontext():  # it is for the program's own thread
            await self._membership.__aexit__(type(error) if error else None, error, None)


def _as_list(tensors: Tensor | list[Tensor]) -> list[Tensor]:
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def _is_nested(tensors: Sequence[Any]) -> bool:
    return bool(tensors) and not isinstance(tensors[0], Tensor)


def _op_of(opts: Any) -> Any:
    if opts is None:
        return dist.ReduceOp.SUM
    return getattr(opts, "reduceOp", opts)
