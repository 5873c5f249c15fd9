"""Plain asyncio: four buckets of gradients are averaged at the same time while the program does something else.

python examples/overlapping_calls.py 0 & python examples/overlapping_calls.py 1
"""

import asyncio
import sys

import torch

import ringwide

PEERS = ["127.0.0.1:29500", "127.0.0.1:29501"]  # one machine; on several, also a key: RINGWIDE_KEY_FILE


async def main(rank: int, peers: list[str]) -> None:
    async with ringwide.join(rank=rank, peers=peers) as ring:
        buckets = [torch.full((250_000,), float(rank + number)) for number in range(4)]
        calls = [ring.allreduce(bucket) for bucket in buckets]  # they begin here, in this order on all ranks
        await asyncio.sleep(0)  # your own work; the network goes on whenever you await
        async with asyncio.timeout(30):  # a deadline, as for any other awaitable
            await asyncio.gather(*calls)
        print(f"rank {ring.rank} of {ring.size}: {[bucket[0].item() for bucket in buckets]}")

        try:
            await ring.allreduce(torch.ones(rank + 1))  # a mistake: shapes differ
        except ringwide.CollectiveMismatch as error:
            print(f"rank {ring.rank} of {ring.size}: {type(error).__name__} with rank {error.other_rank}")
        await ring.barrier()  # the ring still works


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2:] or PEERS))
