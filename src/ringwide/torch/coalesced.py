"""Coalesced operations: several tensors in one call of the ring.

One operation of torch must have one number, so that it fails or succeeds as a whole. A gather sends one row of bytes
per rank, behind a digest of its dtypes and lengths: ranks that disagree on the tensors in it all find out before any of
them has written. A reduce-scatter is one all-reduce of copies, whose dtypes and shapes are in the ring's own
fingerprint; each rank keeps its part.
"""

from collections.abc import Callable, Coroutine, Sequence
from hashlib import blake2b
from typing import Any

import torch

from ringwide.errors import MessageMismatch
from ringwide.ring import Ring
from ringwide.torch.dtype_views import as_bits, as_numbers, operation_on, require_outputs, write

Tensor = torch.Tensor
Call = Coroutine[Any, Any, Any]
_DIGEST_BYTES = 16


async def followed_by(call: Call, finish: Callable[[Any], object]) -> None:
    """Await a call that has begun already, and pass its result to `finish`."""
    finish(await call)


def require_one_each(tensors: Sequence[object], size: int, what: str) -> None:
    if len(tensors) != size:
        raise ValueError(f"{what}: {len(tensors)} tensors for {size} ranks; give one for each rank")


# -- gathering


def gather(ring: Ring, inputs: Sequence[Tensor], outputs: Sequence[Sequence[Tensor]], what: str) -> Call:
    """`outputs[rank][i]` becomes that rank's input i."""
    _check_outputs(inputs, outputs, ring.size, what)
    alike = all(target.numel() == input.numel() for own in outputs for target, input in zip(own, inputs, strict=True))
    if len(inputs) == 1:
        return _gather_one(ring, inputs[0], [own[0] for own in outputs], what, alike=alike)
    rows = _packed(inputs)
    if alike:
        return followed_by(ring.all_gather(rows), lambda found: _spread(found, outputs, ring.rank))
    arriving = [torch.empty(len(_packed(own)), dtype=torch.uint8) for own in outputs]
    call = ring.exchange([rows] * ring.size, arriving, what)
    return followed_by(call, lambda _: _spread(arriving, outputs, ring.rank))


def _check_outputs(inputs: Sequence[Tensor], outputs: Sequence[Sequence[Tensor]], size: int, what: str) -> None:
    if not inputs:
        raise ValueError(f"{what}: there is no input; give at least one")
    if len(outputs) != size:
        raise ValueError(f"{what}: {len(outputs)} lists of outputs for {size} ranks; give one for each rank")
    for rank, own in enumerate(outputs):
        if len(own) != len(inputs):
            raise ValueError(
                f"{what}: {len(own)} outputs for rank {rank} and {len(inputs)} inputs; give one output for each input"
            )
        for target, input in zip(own, inputs, strict=True):
            require_outputs([target], input.dtype, what)


def _gather_one(ring: Ring, input: Tensor, targets: list[Tensor], what: str, *, alike: bool) -> Call:
    bits = [as_bits(target) for target in targets]
    if not alike:
        return ring.exchange([as_bits(input)] * ring.size, bits, what)

    def spread(parts: Sequence[Tensor]) -> None:
        for target, part in zip(bits, parts, strict=True):
            write(target, part)

    return followed_by(ring.all_gather(as_bits(input)), spread)


def _packed(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([_digest(tensors), *map(_as_bytes, tensors)])


def _as_bytes(tensor: Tensor) -> Tensor:
    return as_bits(tensor).contiguous().view(-1).view(torch.uint8)


def _digest(tensors: Sequence[Tensor]) -> Tensor:
    digest = blake2b(_described(tensors).encode(), digest_size=_DIGEST_BYTES).digest()
    return torch.frombuffer(bytearray(digest), dtype=torch.uint8)


def _described(tensors: Sequence[Tensor]) -> str:
    return ", ".join(f"{str(tensor.dtype).removeprefix('torch.')}[{tensor.numel()}]" for tensor in tensors)


def _spread(rows: Sequence[Tensor], outputs: Sequence[Sequence[Tensor]], rank: int) -> None:
    for source, (row, own) in enumerate(zip(rows, outputs, strict=True)):
        if not torch.equal(row[:_DIGEST_BYTES], _digest(own)):
            raise MessageMismatch(
                tag=0,
                sender=source,
                sent="other dtypes or lengths",
                receiver=rank,
                expected=_described(own),
                rank=rank,
            )
    for row, own in zip(rows, outputs, strict=True):
        lengths = [tensor.numel() * tensor.element_size() for tensor in own]
        for target, part in zip(own, row[_DIGEST_BYTES:].split(lengths), strict=True):
            write(target, part.clone().view(target.dtype))  # a copy is aligned for every dtype


# -- reducing


def reduce_scatter(
    ring: Ring, outputs: Sequence[Tensor], inputs: Sequence[Sequence[Tensor]], op: Any, what: str
) -> Call:
    """`outputs[i]` becomes the reduction by `op`, over all ranks, of their `inputs[i][this rank]`."""
    if len(outputs) != len(inputs) or not outputs:
        raise ValueError(f"{what}: {len(outputs)} outputs for {len(inputs)} inputs; give one output for each input")
    for output, parts in zip(outputs, inputs, strict=True):
        require_one_each(parts, ring.size, what)
        require_outputs([output], parts[ring.rank].dtype, what)
        if output.numel() != parts[ring.rank].numel():
            raise ValueError(
                f"{what}: the part of rank {ring.rank} has {parts[ring.rank].numel()} elements, and its output "
                f"{output.numel()}; make them equal"
            )
    op_name = operation_on([part for parts in inputs for part in parts], op)
    copies = [[as_numbers(part, op_name).clone() for part in parts] for parts in inputs]

    def keep_own(_: object) -> None:
        for output, parts in zip(outputs, copies, strict=True):
            write(as_numbers(output, op_name), parts[ring.rank])

    return followed_by(ring.allreduce([part for parts in copies for part in parts], op_name), keep_own)
