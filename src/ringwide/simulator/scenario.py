"""What a seed means: how large the ring is, who calls what, what the network is like and what goes wrong."""

from dataclasses import dataclass
from math import inf
from random import Random

from ringwide.simulator.calls import LARGE, CodecSettings, SimulatedCall, calls_by, codec_jobs_by
from ringwide.simulator.faults import Fault, FaultKind, faults_by
from ringwide.simulator.host import Weather, weather_by

_CAN_ENCODE = ("auto", "ring")
_ALGORITHMS = (*_CAN_ENCODE, "tree", "tree")
_ODDS_OF_SIZES: tuple[int, ...] = (*[2] * 210, *[3] * 120, *[4] * 24, *[5, 6, 7, 8] * 4, *range(9, 17))
"""Small rings are the fastest to try; three ranks are the fewest of which one may hear of a loss from another."""
_MOST_THAT_ENCODE, _MOST_THAT_TRY = 8, 4
"""Their jobs take time, and with `auto` they make many calls."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One life of a ring."""

    size: int
    algorithm: str
    fanout: int  # of the tree
    epoch: int
    sealed: bool  # frames have checksums
    segment_bytes: int
    tree_bytes: int
    express_bytes: int
    staging_bytes: int
    lanes: int
    codec_jobs: CodecSettings
    calls: tuple[SimulatedCall, ...]
    faults: tuple[Fault, ...]
    weather: Weather
    peer_loss: bool  # ranks leave when their calls have ended
    resigning: bool  # ranks leave when they have lost another
    keeping: bool  # connections copy what is sent before it leaves, as those that encrypt or share memory

    @property
    def fault(self) -> Fault:
        """The first one, which may be none."""
        return self.faults[0]

    @property
    def keeps_books(self) -> bool:
        """Every call of a bucket has error feedback, as no other one is under way; and all ranks succeed, or none."""
        requests = {call.request for call in self.calls}
        apart = len(requests) == len(self.calls) or all(call.awaited for call in self.calls)
        harmless = len(self.faults) == 1 and self.fault.kind in (FaultKind.NONE, FaultKind.MISMATCH)
        return self.codec_jobs.feedback and apart and harmless

    @property
    def depends_on_time(self) -> bool:
        """A lossy codec or its feedback is used in some calls, but which ones is a matter of time."""
        return self.codec_jobs.lossy and (
            self.codec_jobs.codec == "auto" or (self.codec_jobs.feedback and not self.keeps_books)
        )

    def leaves(self, rank: int) -> bool:
        """Does this rank say goodbye when its calls have ended?"""
        fault = self.fault
        if fault.kind in (FaultKind.LEAVE, FaultKind.LATE) and fault.rank == rank:
            return fault.kind is FaultKind.LEAVE or (self.peer_loss and fault.lasts < inf)
        return self.peer_loss

    @property
    def strikes_on_the_way_out(self) -> bool:
        """A kill of one that has said goodbye, and has perhaps not got rid of everything."""
        return self.fault.kind is FaultKind.KILL and self.peer_loss

    def calls_of(self, rank: int) -> list[SimulatedCall]:
        """What one rank calls."""
        calls, fault = list(self.calls), self.fault
        if fault.kind is FaultKind.MISMATCH and rank in fault.odd:
            calls[fault.call] = fault.other
        if fault.kind is FaultKind.LEAVE and rank == fault.rank:
            del calls[fault.call + 1 :]
        if fault.lateness(rank, fault.call) == inf:
            del calls[fault.call :]
        return calls


def scenario_of(seed: int) -> Scenario:
    """Draw everything from the seed."""
    chance = Random(seed)
    codec_jobs = codec_jobs_by(chance)
    size = _size(chance, codec_jobs)
    calls = calls_by(chance, size, codec_jobs)
    weather = weather_by(chance, codec_jobs)
    faults = faults_by(chance, size, calls, weather, codec_jobs)
    return Scenario(
        size=size,
        algorithm=chance.choice(_CAN_ENCODE if codec_jobs.encodes else _ALGORITHMS),
        fanout=chance.randint(1, size - 1),
        epoch=chance.choice((0, 7)),
        sealed=chance.random() < 0.5 or any(fault.garbles for fault in faults),
        segment_bytes=chance.choice(_segment_bytes(size, codec_jobs)),
        tree_bytes=min(chance.choice((0, 32, 128)), codec_jobs.threshold_bytes if codec_jobs.encodes else 128),
        express_bytes=chance.choice((8, 32, 4096)),
        staging_bytes=chance.choice((0, 60, 400)),
        lanes=chance.randint(1, 3 if size < LARGE else 2),
        codec_jobs=codec_jobs,
        calls=calls,
        faults=faults,
        weather=weather,
        peer_loss=chance.random() < 0.4,
        resigning=chance.random() < 0.6,
        keeping=chance.random() < 0.4,
    )


def _size(chance: Random, codec_jobs: CodecSettings) -> int:
    most = 16 if not codec_jobs.encodes else _MOST_THAT_TRY if codec_jobs.codec == "auto" else _MOST_THAT_ENCODE
    size: int = chance.choice(_ODDS_OF_SIZES)
    return size if size <= most else 2 + size % 3


def _segment_bytes(size: int, codec_jobs: CodecSettings) -> tuple[int, ...]:
    if codec_jobs.encodes:
        return 128, 256, 512
    return (8, 20, 64, 256) if size < LARGE else (20, 64, 256)
