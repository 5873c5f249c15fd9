"""What the machine allows, by arithmetic from what was measured of it in the same rounds.

Large, over TCP. A ring of n ranks moves 2 (n - 1) S bytes of a tensor of S bytes, all ranks together. Two processes
that send to each other at once move 2 B bytes a second, where B is the rate each way. All ranks share this one machine,
so a ring that does nothing but move bytes, as fast as those two, takes (n - 1) S / B seconds. B is the better of two
rates: from and to memory that stays in the cache, and from and to memory of the tensor's size, which is about half as
fast where that is large. Only the better one is a limit: the ring passes parts on while they are in the cache, and can
be faster than those two with whole tensors. The fraction of that lower rate is reported beside it, by its own name.

Large, in shared memory. The least that a ring has to do is to add (n - 1) S bytes and to copy (n - 1) S bytes, spread
over the cores that there are for n ranks. The rates are those of one process alone, of arrays of the tensor's size; so
it is a limit that memory shared by several cores keeps one from.

Small. Hops that follow each other, each as long as half a round trip of a message of that size: of the tensor, or of a
chunk of it where the ring is taken. As long as each rank has a core, the round trip is one that never sleeps.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ringwide.protocol.tree import depth

STREAM_TCP, STREAM_CACHED, STREAM_UNIX = "stream tcp", "stream tcp, cached", "stream unix"
PING_TCP, PING_UNIX = "ping tcp", "ping unix"
COPY, ADD = "copy", "add"

HOPPING = {"tree", "doubling", "star"}
"""Whole tensors in a few hops; all else moves parts of them, as the ring does. Results from before there was the tree
name the other two."""
SMALLEST_STREAM, LARGEST_PING = 2**18, 2**20


@dataclass(frozen=True, slots=True)
class Probe:
    """Something tried with the machine itself, with so many bytes."""

    what: str
    nbytes: int

    @property
    def calls(self) -> int:
        return 50 if self.nbytes <= 2**17 else 10 if self.nbytes <= 2**20 else 3


def probes_for(algorithms: Collection[str | None], ranks: int, nbytes: int) -> list[Probe]:
    """What has to be known of the machine to say what such an all-reduce could take."""
    found = [Probe(COPY, nbytes), Probe(ADD, nbytes)]
    known = {algorithm for algorithm in algorithms if algorithm}
    if nbytes >= SMALLEST_STREAM or known - HOPPING:
        found += [Probe(what, nbytes) for what in (STREAM_TCP, STREAM_CACHED, STREAM_UNIX)]
    if nbytes <= LARGEST_PING or known & HOPPING:
        sizes = {message_bytes(algorithm, ranks, nbytes) for algorithm in known} or {nbytes}
        found += [Probe(what, size) for what in (PING_TCP, PING_UNIX) for size in sorted(sizes)]
    return found


def message_bytes(algorithm: str, ranks: int, nbytes: int) -> int:
    """Of one hop."""
    return nbytes if algorithm in HOPPING else max(nbytes // ranks, 4)


def hops(algorithm: str, ranks: int) -> int:
    """How many messages follow each other."""
    match algorithm:
        case "doubling":
            rounds = ranks.bit_length() - 1
            return rounds if ranks == 2**rounds else rounds + 2  # others hand theirs in first, and are told at the end
        case "star":
            return 2
        case "tree":
            return 2 * depth(ranks)
        case _:
            return 2 * (ranks - 1)


def least_seconds(
    way: str, algorithm: str, ranks: int, nbytes: int, seconds: Mapping[Probe, float], cores: int
) -> tuple[str, float] | None:
    """The name of the limit and what it allows; none if what it needs was not measured. `way`: tcp or same host.

    `seconds` says how long each probe took for the bytes that it has in its name.
    """
    hopping = hopping_seconds(PING_TCP if way == "tcp" else PING_UNIX, algorithm, ranks, nbytes, seconds)
    if algorithm in HOPPING:
        kind = "TCP" if way == "tcp" else "Unix"
        return None if hopping is None else (f"{hops(algorithm, ranks)} x half a {kind} ping", hopping)
    if way == "tcp":
        ways = [stream_seconds(what, ranks, nbytes, seconds) for what in (STREAM_TCP, STREAM_CACHED)]
        moving = min((taken for taken in ways if taken is not None), default=None)
        return None if moving is None else ("raw TCP both ways", max(moving, hopping or 0))
    working = memory_seconds(ranks, nbytes, seconds, cores)
    return None if working is None else ("copy and add", working)


def hopping_seconds(what: str, algorithm: str, ranks: int, nbytes: int, seconds: Mapping[Probe, float]) -> float | None:
    ping = seconds.get(Probe(what, message_bytes(algorithm, ranks, nbytes)))
    return None if ping is None else hops(algorithm, ranks) * ping / 2


def stream_seconds(what: str, ranks: int, nbytes: int, seconds: Mapping[Probe, float]) -> float | None:
    """(n - 1) S / B, where S / B is what the probe took."""
    taken = seconds.get(Probe(what, nbytes))
    return None if taken is None else (ranks - 1) * taken


def memory_seconds(ranks: int, nbytes: int, seconds: Mapping[Probe, float], cores: int) -> float | None:
    copy, add = seconds.get(Probe(COPY, nbytes)), seconds.get(Probe(ADD, nbytes))
    if copy is None or add is None:
        return None
    return (ranks - 1) * (copy + add) / min(ranks, cores)
