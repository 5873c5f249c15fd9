"""Process group of torch.distributed whose ranks form a ring.

torch calls these methods, some by an old and some by a new name. Each hands a function to the background loop, which
makes the operation's one call of the ring there, and returns a `RingWork` at once. Only an operation that torch will
wait for anyway (`async_op=False`) is waited for here. Nothing but an interrupt is raised here: see `work.py`.
"""

import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store
from torch.autograd import profiler

from ringwide.errors import fresh
from ringwide.ring import Ring
from ringwide.runtime.background_loop import BackgroundLoop
from ringwide.runtime.loop_call import LoopCall
from ringwide.torch import coalesced
from ringwide.torch.callback_threads import in_callback_thread
from ringwide.torch.coalesced import Call
from ringwide.torch.dtype_views import alike, as_bits, as_numbers, operation_of, operation_on
from ringwide.torch.group_interface import GroupInterface, options_of
from ringwide.torch.work import (
    NO_TIMEOUT,
    RingWork,
    end_calls_at_interrupts,
    keep_from_compilers,
    limited,
    recorded,
)

Tensor = torch.Tensor
Begin = Callable[[], Call]


class RingProcessGroup(GroupInterface):
    """Process group on a `ring`. `error` is that of the last operation that failed."""

    def __init__(
        self, ring: Ring, membership: AbstractAsyncContextManager[Ring], store: Store, background_loop: BackgroundLoop
    ) -> None:
        super().__init__(ring, store)
        self.error: BaseException | None = None
        self._membership, self._background = membership, background_loop
        self._coalesced: list[LoopCall[Any]] | None = None  # operations since `_start_coalescing`
        self._joined = threading.current_thread()
        end_calls_at_interrupts(background_loop)

    def __repr__(self) -> str:
        return f"<RingProcessGroup {self._name!r}: {self.ring!r}>"

    def rank(self) -> int:
        return self.ring.rank

    def size(self) -> int:
        return self.ring.size

    getRank, getSize = rank, size  # names called from C++, for every bucket of DDP

    # -- reductions

    def allreduce(self, tensors: Any, opts: Any = None, *more: Any, **named: Any) -> RingWork:
        opts = options_of(opts, *more, **named) if more or named else opts
        return self._work("all_reduce", lambda: self._allreduce(_as_list(tensors), _op_of(opts)), tensors, opts)

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> RingWork:
        return self.allreduce(tensors, opts)

    def _allreduce(self, tensors: list[Tensor], op: Any) -> Call:
        if any(tensor.is_sparse for tensor in tensors):
            return coalesced.sparse_allreduce(self.ring, tensors, op)
        op_name = operation_on(tensors, op)
        numbers = [as_numbers(tensor, op_name) for tensor in tensors]
        return self.ring.allreduce(numbers[0] if len(numbers) == 1 else numbers, op_name)

    def average(self, tensor: Tensor, bucket: Callable[[], str]) -> RingWork:
        """Mean of a bucket of the DDP hook. Error feedback is kept under the bucket's name."""
        return self._work("all_reduce", lambda: self._average(tensor, bucket), tensor)

    def _average(self, tensor: Tensor, bucket: Callable[[], str]) -> Call:
        if tensor.is_sparse:
            return coalesced.sparse_allreduce(self.ring, [tensor], dist.ReduceOp.AVG)
        return self.ring.allreduce(tensor, "mean", bucket=bucket())

    def reduce(self, tensors: Any, *given: Any, **named: Any) -> RingWork:
        opts = options_of(*given, **named)
        return self._work(
            "reduce", lambda: self._reduce(_as_list(tensors), opts.reduceOp, opts.rootRank), tensors, opts
        )

    def _reduce(self, tensors: list[Tensor], op: Any, root: int) -> Call:
        op_name = operation_on(tensors, op)
        return self.ring.reduce([as_numbers(tensor, op_name) for tensor in tensors], root, op_name)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> RingWork:
        return self._work(
            "reduce_scatter", lambda: self._reduce_scatter(output, input, _op_of(opts)), output, opts, inputs=input
        )

    _reduce_scatter_base = reduce_scatter_tensor = reduce_scatter_single

    def _reduce_scatter(self, output: Tensor, input: Tensor, op: Any) -> Call:
        op_name = operation_of(op, input.dtype)
        self._require_shares(output, input)
        return self.ring.reduce_scatter(as_numbers(input, op_name), op_name, into=as_numbers(output, op_name))

    def _require_shares(self, output: Tensor, input: Tensor) -> None:
        if output.numel() * self.ring.size != input.numel():
            raise ValueError(
                f"reduce_scatter of {input.numel()} elements over {self.ring.size} ranks into {output.numel()}: "
                "the input must have as many elements for each rank as the output has"
            )

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> RingWork:
        return self._work(
            "reduce_scatter",
            lambda: self._reduce_scatter_singles(outputs, inputs, _op_of(opts)),
            *(outputs, opts),
            inputs=inputs,
        )

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _reduce_scatter_singles(self, outputs: list[Tensor], inputs: list[Tensor], op: Any) -> Call:
        if len(outputs) == len(inputs) == 1:
            return self._reduce_scatter(outputs[0], inputs[0], op)
        for output, input in zip(outputs, inputs, strict=False):
            self._require_shares(output, input)
        shares = [input.reshape(self.ring.size, -1).unbind() for input in inputs]
        return coalesced.reduce_scatter(self.ring, outputs, shares, op, "reduce_scatter")

    def reduce_scatter(self, outputs: Any, inputs: Any, *given: Any, **named: Any) -> RingWork:
        opts = options_of(*given, **named)
        return self._work(
            "reduce_scatter",
            lambda: self._reduce_scatter_lists(outputs, inputs, _op_of(opts)),
            *(outputs, opts),
            inputs=inputs,
        )

    def _reduce_scatter_lists(self, outputs: Any, inputs: Any, op: Any) -> Call:
        targets, lists = _as_list(outputs), inputs if _is_nested(inputs) else [inputs]
        if len(targets) == len(lists) == 1 and alike([*targets, *lists[0]]):
            return self._reduce_scatter(targets[0], torch.cat([part.reshape(-1) for part in lists[0]]), op)
        return coalesced.reduce_scatter(self.ring, targets, lists, op, "reduce_scatter")

    # -- copies

    def broadcast(self, tensors: Any, *given: Any, **named: Any) -> RingWork:
        opts = options_of(*given, **named)
        return self._work("broadcast", lambda: self._broadcast(_as_list(tensors), opts.rootRank), tensors, opts)

    def _broadcast(self, tensors: list[Tensor], root: int) -> Call:
        return self.ring.broadcast([as_bits(tensor) for tensor in tensors], root)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> RingWork:
        return self._work("all_gather", lambda: self._all_gather(output, input), output, opts, inputs=input)

    _allgather_base = all_gather_into_tensor = all_gather_single

    def _all_gather(self, output: Tensor, input: Tensor) -> Call:
        self._require_room(output, input)
        return self.ring.all_gather(as_bits(input), into=as_bits(output))

    def _require_room(self, output: Tensor, input: Tensor) -> None:
        if output.numel() != self.ring.size * input.numel():
            raise ValueError(
                f"all_gather of {input.numel()} elements over {self.ring.size} ranks into {output.numel()}: "
                "the output must have room for one input of each rank"
            )

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> RingWork:
        return self._work("all_gather", lambda: self._all_gather_singles(outputs, inputs), outputs, opts, inputs=inputs)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def _all_gather_singles(self, outputs: list[Tensor], inputs: list[Tensor]) -> Call:
        if len(outputs) == len(inputs) == 1:
            return self._all_gather(outputs[0], inputs[0])
        for output, input in zip(outputs, inputs, strict=False):
            self._require_room(output, input)
        rows = [output.view(self.ring.size, -1) for output in outputs]
        return coalesced.gather(
            self.ring, inputs, [[each[rank] for each in rows] for rank in range(self.ring.size)], "all_gather"
        )

    def allgather(self, outputs: Any, inputs: Any, *given: Any, **named: Any) -> RingWork:
        """`outputs[i]` has one tensor for each rank's input i."""
        opts = options_of(*given, **named)
        return self._long_work(
            "all_gather", lambda: self._all_gather_lists(outputs, inputs), outputs, opts, inputs=inputs
        )

    def _all_gather_lists(self, outputs: Any, inputs: Any) -> Call:
        given, lists = _as_list(inputs), outputs if _is_nested(outputs) else [outputs]
        if len(lists) != len(given):
            raise ValueError(f"all_gather: {len(lists)} lists of outputs for {len(given)} inputs; give one for each")
        for targets in lists:
            coalesced.require_one_each(targets, self.ring.size, "all_gather")
        by_rank = [[targets[rank] for targets in lists] for rank in range(self.ring.size)]
        return coalesced.gather(self.ring, given, by_rank, "all_gather")

    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> RingWork:
        """`outputs[rank]` has one tensor for each of that rank's inputs."""
        return self._long_work(
            "all_gather",
            lambda: coalesced.gather(self.ring, _as_list(inputs), outputs, "all_gather_coalesced"),
            *(outputs, opts),
            inputs=inputs,
        )

    def gather(self, outputs: Any, inputs: Any, *given: Any, **named: Any) -> RingWork:
        opts = options_of(*given, **named)
        return self._long_work(
            "gather", lambda: self._gather(outputs, inputs, opts.rootRank), outputs, opts, inputs=inputs
        )

    def _gather(self, outputs: Any, inputs: Any, root: int) -> Call:
        input, targets = _only(inputs, "gather"), _first_list(outputs)
        if self.ring.rank == root:
            coalesced.require_one_each(targets, self.ring.size, "gather")
        outgoing = [input if rank == root else None for rank in range(self.ring.size)]
        incoming = targets if self.ring.rank == root else [None] * self.ring.size
        return self._exchange(f"gather to rank {root}", outgoing, incoming)

    def scatter(self, outputs: Any, inputs: Any, *given: Any, **named: Any) -> RingWork:
        opts = options_of(*given, **named)
        return self._long_work(
            "scatter", lambda: self._scatter(outputs, inputs, opts.rootRank), outputs, opts, inputs=inputs
        )

    def _scatter(self, outputs: Any, inputs: Any, root: int) -> Call:
        output, parts = _only(outputs, "scatter"), _first_list(inputs)
        if self.ring.rank == root:
            coalesced.require_one_each(parts, self.ring.size, "scatter")
        outgoing = parts if self.ring.rank == root else [None] * self.ring.size
        incoming = [output if rank == root else None for rank in range(self.ring.size)]
        return self._exchange(f"scatter from rank {root}", outgoing, incoming)

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], *given: Any, **named: Any) -> RingWork:
        opts = options_of(*given, **named)
        return self._long_work("all_to_all", lambda: self._all_to_all(outputs, inputs), outputs, opts, inputs=inputs)

    def _all_to_all(self, outputs: list[Tensor], inputs: list[Tensor]) -> Call:
        coalesced.require_one_each(inputs, self.ring.size, "all_to_all")
        coalesced.require_one_each(outputs, self.ring.size, "all_to_all")
        return self._exchange("all_to_all", inputs, outputs)

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_splits: list[int],
        input_splits: list[int],
        *given: Any,
        **named: Any,
    ) -> RingWork:
        opts = options_of(*given, **named)
        return self._long_work(
            "all_to_all",
            lambda: self._exchange(
                "all_to_all_single", self._split(input, input_splits), self._split(output, output_splits)
            ),
            *(output, opts),
            inputs=input,
        )

    alltoall_base = all_to_all_single

    def _split(self, tensor: Tensor, sizes: list[int]) -> list[Tensor]:
        if not sizes and tensor.shape[0] % self.ring.size:
            raise ValueError(f"all_to_all_single: {tensor.shape[0]} rows cannot be split evenly over {self.ring.size}")
        return list(tensor.split(sizes or [tensor.shape[0] // self.ring.size] * self.ring.size))

    def _exchange(self, what: str, outgoing: Sequence[Tensor | None], incoming: Sequence[Tensor | None]) -> Call:
        def bits(tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
            return [None if tensor is None else as_bits(tensor) for tensor in tensors]

        return self.ring.exchange(bits(outgoing), bits(incoming), what)

    def barrier(self, *given: Any, **named: Any) -> RingWork:
        opts = options_of(*given, **named)
        return self._work("barrier", lambda: self.ring.barrier(), [], opts)

    # -- messages: they have no number, so one that cannot begin affects no other rank

    def send(self, tensors: list[Tensor], to: int, tag: int) -> RingWork:
        return self._message("send", lambda: self.ring.send(as_bits(_only(tensors, "send")), to, tag), tensors)

    def recv(self, tensors: list[Tensor], source: int, tag: int) -> RingWork:
        return self._message("recv", lambda: self.ring.receive(as_bits(_only(tensors, "recv")), source, tag), tensors)

    def recv_anysource(self, tensors: list[Tensor], tag: int) -> RingWork:
        return self._message(
            "recvAnySource", lambda: self.ring.receive(as_bits(_only(tensors, "recv")), None, tag), tensors
        )

    def _message(self, title: str, begin: Begin, tensors: Any) -> RingWork:
        return self._started(title, begin, tensors, None, inputs=tensors, by_hand=False)

    # -- start of every operation

    def _work(
        self, title: str, begin: Begin, tensors: Any, opts: Any = None, *, inputs: Any = None, by_hand: bool = True
    ) -> RingWork:
        """Start a numbered operation. `begin` makes its one call of the ring; if that raises, the number is used up.

        A profiler sees it by its title, with the shapes of the inputs; where there are none, the tensors are both.
        """
        brought = tensors if inputs is None else inputs
        return self._started(title, lambda: self._begun(begin), tensors, opts, inputs=brought, by_hand=by_hand)

    def _long_work(self, title: str, begin: Begin, tensors: Any, opts: Any, *, inputs: Any) -> RingWork:
        """Start an operation that consists of several messages, with deadlines of its own."""
        return self._work(title, begin, tensors, opts, inputs=inputs, by_hand=False)

    def _begun(self, begin: Begin) -> Call:
        """Runs on the loop's thread. A failure still uses up the number, so that later ones match between ranks."""
        try:
            return begin()
        except Exception as error:
            return self.ring.refused(fresh(error))

    def _started(self, title: str, begin: Begin, tensors: Any, opts: Any, *, inputs: Any, by_hand: bool) -> RingWork:
        timeout = getattr(opts, "timeout", NO_TIMEOUT)
        if timeout > NO_TIMEOUT:
            begin, by_hand = limited(title, begin, timeout), False
        if profiler._is_profiler_enabled:
            begin = recorded(f"ringwide:{title}", begin, _tensors_in(inputs))
        pending = self._background.pending(begin, by_hand=by_hand, on_error=self._note)
        if in_callback_thread():
            pending.caller = self._joined
        try:
            if self._coalesced is not None:
                self._coalesced.append(pending)
            elif not getattr(opts, "asyncOp", True):
                pending.settle()  # torch waits next, but an interrupt could prevent that
            pending.hand_over()
            return RingWork([pending], _tensors_in(tensors))
        except BaseException:  # an interrupt, and nobody will ever wait for this
            pending.give_up()
            raise

    def _start_coalescing(self, device: torch.device) -> None:
        self._coalesced = []

    def _end_coalescing(self, device: torch.device) -> RingWork:
        together, self._coalesced = self._coalesced or [], None
        return RingWork(together, [])

    def _note(self, error: BaseException) -> None:
        self.error = error

    # -- the end

    def shutdown(self) -> None:
        """Leave the ring with a goodbye, which in a `finally` names the exception."""
        self._background.close_now(self._membership, sys.exc_info()[1])

    abort = shutdown


def _as_list(tensors: Tensor | list[Tensor]) -> list[Tensor]:
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def _is_nested(tensors: Sequence[Any]) -> bool:
    return bool(tensors) and not isinstance(tensors[0], Tensor)


def _first_list(tensors: Any) -> list[Tensor]:
    return list(tensors[0] if _is_nested(tensors) else tensors or [])


def _only(tensors: Any, what: str) -> Tensor:
    given = _as_list(tensors)
    if len(given) != 1:
        raise ValueError(f"{what}: {len(given)} tensors; give one")
    return given[0]


def _tensors_in(value: Any) -> list[Tensor]:
    """Flat list of the tensors in nested lists: the result of a work."""
    if isinstance(value, list | tuple):
        return [tensor for part in value for tensor in _tensors_in(part)]
    return [value] if isinstance(value, Tensor) else []


def _op_of(opts: Any) -> Any:
    if opts is None:
        return dist.ReduceOp.SUM
    return getattr(opts, "reduceOp", opts)


keep_from_compilers(GroupInterface, RingProcessGroup, RingWork)
