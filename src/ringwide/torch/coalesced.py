"""Coalesced operations: several tensors in one call of the ring.

One operation of torch must have one number, so that it fails or succeeds as a whole. A gather sends one row of bytes
per rank, behind a digest of its dtypes and lengths: ranks that disagree on the tensors in it all find out before any of
them has written. A reduce-scatter is one all-reduce of copies, whose dtypes and shapes are in the ring's own
fingerprint; each rank keeps its part.

A sparse all-reduce gathers. Each rank has its own number of entries, so they tell each other how many first, in the
operation's one call; the entries follow as messages, which have no number.
"""

import math
import os
from collections.abc import Callable, Coroutine, Sequence
from hashlib import blake2b
from typing import Any

import torch

from ringwide.errors import CollectiveMismatch, MessageMismatch
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
    return torch.frombuffer(bytearray(_digest_of(_described(tensors))), dtype=torch.uint8)


def _digest_of(text: str) -> bytes:
    return blake2b(text.encode(), digest_size=_DIGEST_BYTES).digest()


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


# -- sparse tensors

_HEADER_BYTES = 48  # a digest, random bytes, and the number of entries


def sparse_allreduce(ring: Ring, tensors: Sequence[Tensor], op: Any) -> Call:
    """Sum or mean of sparse COO tensors; as with gloo coalesced, and added up in the order of the ranks.

    Half precision is summed in float32 and rounded once, as in dense tensors; torch cannot add sparse float16 at all.
    """
    if len(tensors) != 1:
        raise ValueError(f"all_reduce: {len(tensors)} tensors, and a sparse one among them; reduce it alone")
    target = _behind_pairs(tensors[0])
    op_name = operation_on([target], op)
    if op_name not in ("sum", "mean") or target.dtype is torch.bool:
        raise NotImplementedError(
            f"all_reduce of a sparse {target.dtype} tensor by {getattr(op, 'op', op)}: the backend ringwide "
            "reduces sparse tensors of numbers by SUM, and those of floats by AVG too"
        )
    brought = target.detach().coalesce()
    as_numbers(brought.values(), op_name)
    described = _described_sparse(brought, op_name)
    told = ring.all_gather(_header(described, brought.values().shape[0]))
    return _reduce_sparse(ring, target, brought, op_name, told)


def _behind_pairs(tensor: Tensor) -> Tensor:
    """Sparse tensor that is to be written. torch shows complex numbers as pairs of real ones, `torch.view_as_real`, and
    what is written into such a view of a sparse tensor, its caller never sees."""
    base = tensor._base  # noqa: SLF001 - torch has no other name for it
    return tensor if base is None or tensor.is_complex() or not (base.is_sparse and base.is_complex()) else base


async def _reduce_sparse(ring: Ring, target: Tensor, brought: Tensor, op_name: str, told: Call) -> None:
    headers = [header.numpy().tobytes() for header in await told]
    _require_alike(headers, _described_sparse(brought, op_name), ring.rank)
    total: Tensor | None = None
    carrier = torch.float32 if brought.dtype in (torch.float16, torch.bfloat16) else brought.dtype
    for indices, values in await _swap_entries(ring, brought, headers):
        part = torch.sparse_coo_tensor(
            indices, values.to(carrier), brought.shape, is_coalesced=True, check_invariants=False
        )
        total = part if total is None else total + part
    assert total is not None
    with torch.inference_mode(target.is_inference()), torch.no_grad():
        target.copy_((total / ring.size if op_name == "mean" else total).coalesce().to(brought.dtype))


def _described_sparse(tensor: Tensor, op_name: str) -> str:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"all_reduce({op_name}, {dtype}{list(tensor.shape)} with {tensor.sparse_dim()} sparse dimensions)"


def _header(described: str, entries: int) -> Tensor:
    """What must be alike on all ranks, something that is never the same twice, and what may differ."""
    parts = _digest_of(described), os.urandom(_HEADER_BYTES - _DIGEST_BYTES - 8), entries.to_bytes(8, "little")
    return torch.frombuffer(bytearray(b"".join(parts)), dtype=torch.uint8)


def _require_alike(headers: Sequence[bytes], described: str, rank: int) -> None:
    """All ranks have the same headers: where two differ, every rank finds out."""
    digests = [header[:_DIGEST_BYTES] for header in headers]
    if len(set(digests)) > 1:
        other = next(other for other, digest in enumerate(digests) if digest != digests[rank])
        raise CollectiveMismatch(
            number=0,
            rank=rank,
            ours=described,
            other_rank=other,
            theirs="it with another dtype, shape or reduction",
            advice="all ranks must bring sparse tensors of the same dtype and shape, with any number of entries",
        )


async def _swap_entries(ring: Ring, brought: Tensor, headers: Sequence[bytes]) -> list[tuple[Tensor, Tensor]]:
    """Indices and values of each rank. The tag of these messages is that of this operation, and of no other."""
    tag = int.from_bytes(blake2b(b"".join(headers), digest_size=8).digest(), "little", signed=True)
    counts = [int.from_bytes(header[-8:], "little") for header in headers]
    indices, values = brought.indices(), brought.values()
    own = torch.cat([_as_bytes(indices), _as_bytes(values)])
    others = [rank for rank in range(ring.size) if rank != ring.rank]
    calls: list[Call] = [ring.send(own, rank, tag) for rank in others if counts[ring.rank]]
    try:
        entry_bytes = len(indices) * indices.element_size() + math.prod(values.shape[1:]) * values.element_size()
        rows = {rank: torch.empty(counts[rank] * entry_bytes, dtype=torch.uint8) for rank in others}
        calls += [ring.receive(rows[rank], rank, tag) for rank in others if counts[rank]]
        for call in calls:
            await call
    finally:
        for call in calls:
            call.close()
    rows[ring.rank] = own
    return [_entries(rows[rank], counts[rank], indices, values) for rank in range(ring.size)]


def _entries(row: Tensor, count: int, indices: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Parts of a row, of the same dtypes as these; a copy is aligned for every dtype."""
    split = len(indices) * count * indices.element_size()
    return (
        row[:split].clone().view(indices.dtype).view(len(indices), count),
        row[split:].clone().view(values.dtype).view(count, *values.shape[1:]),
    )
