"""The star: the fewest messages, for small buckets of ranks that share a few cores.

Every rank gives its numbers to rank 0, which adds them in the order of the ranks and gives everybody the total. That is
2 (size - 1) messages in all, where recursive doubling takes size log2(size); and each rank but one is woken up once.
On machines of their own ranks would wait for rank 0. Where they take turns on the same cores, messages and wake-ups
are what a collective costs.
"""

from ringwide.protocol.doubling import Schedule, Stop
from ringwide.protocol.instruction import Combine, Finish, Keep, Script, Send


def star_schedule(*, rank: int, size: int) -> Schedule:
    last_hop = size  # hop n is what rank n gives
    if rank:
        return Schedule((Send(rank, 0),), [Stop(last_hop, 0, (Keep(),))], last_hop)
    ending: Script = (Finish(), *(Send(last_hop, peer) for peer in range(1, size)))
    stops = [Stop(peer, peer, (Combine(False), *(ending if peer == size - 1 else ()))) for peer in range(1, size)]
    return Schedule(() if stops else ending, stops, last_hop)
