"""One rank of the benchmark of 16-bit floats: all backends are groups of the same processes and take turns."""

import json
import sys
from typing import Any

import torch
import torch.distributed as dist

import ringwide
from bench.backend_worker import turn

SAMPLE = 1_000_000  # numbers for which the error is measured
CALLS = 3


def group_of(backend: str) -> Any:
    if backend == "native":
        return dist.new_group(backend="ringwide", pg_options=ringwide.RingConfig(half_precision="native"))
    return dist.new_group(backend=backend)


def sample(rank: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(SAMPLE, generator=torch.Generator().manual_seed(rank)).to(dtype)


def error_of(group: dist.ProcessGroup, dtype: torch.dtype) -> float:
    """Root mean square of what a sum is off by, over that of the exact sum."""
    exact = torch.stack([sample(rank, dtype).double() for rank in range(dist.get_world_size())]).sum(0)
    found = sample(dist.get_rank(), dtype)
    dist.all_reduce(found, group=group)
    return float((found.double() - exact).square().mean().sqrt() / exact.square().mean().sqrt())


def wire_bytes(group: Any, tensor: torch.Tensor) -> float:
    """Bytes of payload that all ranks send in one all-reduce, for each number."""

    def sent() -> int:
        return sum(tally.wire_bytes for link in group.ring.statistics().links for tally in link.sent)

    before = sent()
    dist.all_reduce(tensor, group=group)
    total = torch.tensor(float(sent() - before))
    dist.all_reduce(total)
    return float(total) / tensor.numel()


def measure(dtype: torch.dtype, nbytes: int, rounds: int, groups: dict[str, dist.ProcessGroup]) -> dict[str, Any]:
    tensor = torch.ones(nbytes // dtype.itemsize, dtype=dtype)
    seconds: dict[str, list[float]] = {backend: [] for backend in groups}
    for number in range(rounds + 1):
        order = list(groups)[number % len(groups) :] + list(groups)[: number % len(groups)]
        for backend in order:
            tensor.fill_(1)
            taken = turn(lambda group=groups[backend]: dist.all_reduce(tensor, group=group), CALLS)  # type: ignore[misc]
            if number:  # the first is for memory that is new
                seconds[backend].append(taken)
    return {
        "dtype": str(dtype).removeprefix("torch."),
        "bytes": nbytes,
        "seconds": seconds,
        "errors": {backend: error_of(group, dtype) for backend, group in groups.items()},
        "wire_bytes": {backend: wire_bytes(group, tensor) for backend, group in groups.items() if backend != "gloo"},
    }


def main(task: dict[str, Any]) -> None:
    store = f"tcp://{task['store']}"
    dist.init_process_group("gloo", init_method=store, rank=task["rank"], world_size=len(task["peers"]))
    groups = {backend: group_of(backend) for backend in task["backends"]}
    cells = [
        measure(getattr(torch, dtype), nbytes, task["rounds"], groups)
        for dtype in task["dtypes"]
        for nbytes in task["sizes"]
    ]
    dist.destroy_process_group()
    print(json.dumps(cells))


if __name__ == "__main__":
    torch.set_num_threads(1)  # many ranks on one machine
    main(json.load(sys.stdin))
