"""Statistics of one ring, as `Ring.statistics()` returns them, and the memory of this process."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ringwide.compression.autotune import CodecTally, Ledger
from ringwide.compression.codecs.registry import decoder
from ringwide.compression.policy import CodecChoice
from ringwide.health.stragglers import SlowRank, Stragglers
from ringwide.transport.lane import Lane
from ringwide.transport.link import Link
from ringwide.transport.sockets import Transport, granted_bytes


@dataclass(frozen=True, slots=True)
class LaneStatistics:
    """One connection. The buffer sizes are those the kernel granted."""

    index: int
    bytes_sent: int
    bytes_received: int
    send_buffer_bytes: int
    receive_buffer_bytes: int
    transport: Transport = "tcp"


@dataclass(frozen=True, slots=True)
class CodecStatistics:
    """Segments sent with one codec in one direction."""

    codec: str
    segments: int
    raw_bytes: int
    wire_bytes: int

    @property
    def ratio(self) -> float:
        """Raw bytes per byte on the wire."""
        return self.raw_bytes / self.wire_bytes if self.wire_bytes else 1.0


@dataclass(frozen=True, slots=True)
class LinkStatistics:
    """All connections to one peer. Only segments of large buckets are counted; small buckets are sent raw."""

    peer: int
    lanes: tuple[LaneStatistics, ...]
    sent: tuple[CodecStatistics, ...] = ()
    received: tuple[CodecStatistics, ...] = ()
    encode_seconds: float = 0.0
    decode_seconds: float = 0.0
    late_seconds: float = 0.0  # collectives here waited this long for the peer to call them
    stuck_seconds: float = 0.0  # and this long while our bytes to it were stuck
    round_trip_seconds: float | None = None  # recent; None if never measured, as nothing had to wait

    @property
    def transport(self) -> str:
        """`memory` (with `unix` for small frames), `unix` alone, or `tcp`.

        There can be several: a rank that begins to listen at that moment may be reached on either kind of socket.
        """
        ways = {lane.transport for lane in self.lanes}
        return " and ".join(sorted(ways - {"unix"} if "memory" in ways else ways))

    @property
    def bytes_sent(self) -> int:
        return sum(lane.bytes_sent for lane in self.lanes)

    @property
    def bytes_received(self) -> int:
        return sum(lane.bytes_received for lane in self.lanes)


@dataclass(frozen=True, slots=True)
class Statistics:
    """Figures of a ring since it was joined. `network_seconds`: time in which at least one collective was awaited."""

    collectives: int
    network_seconds: float
    buffer_bytes_asked: int
    links: tuple[LinkStatistics, ...]
    threshold_bytes: int | None = None  # smaller segments are sent raw; None: all are
    choices: tuple[CodecChoice, ...] = ()  # codec that `codec: auto` uses for each bucket, and why
    slow: SlowRank | None = None  # rank that the others wait for, if there is one

    @property
    def compression_ratio(self) -> float:
        """Raw bytes of segments per byte sent."""
        sent = [tally for link in self.links for tally in link.sent]
        wire_bytes = sum(tally.wire_bytes for tally in sent)
        return sum(tally.raw_bytes for tally in sent) / wire_bytes if wire_bytes else 1.0

    @property
    def codec_seconds(self) -> float:
        """Time spent encoding and decoding, in all threads."""
        return sum(link.encode_seconds + link.decode_seconds for link in self.links)

    @property
    def bytes_sent(self) -> int:
        return sum(link.bytes_sent for link in self.links)

    @property
    def bytes_received(self) -> int:
        return sum(link.bytes_received for link in self.links)


def of_links(
    links: Mapping[int, Link], ledgers: Mapping[int, Ledger], stragglers: Stragglers
) -> tuple[LinkStatistics, ...]:
    return tuple(_of_link(peer, link, ledgers[peer], stragglers) for peer, link in links.items())


def _of_link(peer: int, link: Link, ledger: Ledger, stragglers: Stragglers) -> LinkStatistics:
    return LinkStatistics(
        peer,
        tuple(map(_of_lane, link.lanes.values())),
        _of_tallies(ledger.sent),
        _of_tallies(ledger.received),
        ledger.encode_seconds,
        ledger.decode_seconds,
        stragglers.late.total.get(link.peer, 0.0),
        stragglers.stuck.total.get(link.peer, 0.0),
        stragglers.round_trip(link.peer),
    )


def _of_lane(lane: Lane) -> LaneStatistics:
    granted = (0, 0) if lane.closed else granted_bytes(lane.socket)
    return LaneStatistics(lane.index, lane.bytes_sent, lane.bytes_received, *granted, lane.transport)


def _of_tallies(tallies: Mapping[int, CodecTally]) -> tuple[CodecStatistics, ...]:
    return tuple(
        CodecStatistics(_codec_name(number), tally.segments, tally.raw_bytes, tally.wire_bytes)
        for number, tally in sorted(tallies.items())
    )


def _codec_name(number: int) -> str:
    codec = decoder(number)
    return f"codec {number}" if codec is None else codec.name


# -- memory of this process, as Linux reports it; 0 (unknown) elsewhere

_KIB = 1024
_PROCESS = Path("/proc/self")


def shared_out_bytes(siblings: int = 0, *, of_files_in: Path | None = None) -> int:
    """Resident memory with shared pages divided among the processes that map them (PSS), so that nodes add up.

    `siblings`: number of processes, including this one, that were forked from one that is not counted itself. Its
    share of the common pages is divided among them. `of_files_in`: only files in this directory that are mapped.
    """
    text = _text_of("smaps_rollup") if of_files_in is None else _mappings_of(of_files_in)
    shared_out = _bytes_in(text, "Pss")
    if not siblings:
        return shared_out
    private = _bytes_in(text, "Private_Clean") + _bytes_in(text, "Private_Dirty")
    return shared_out + max(0, shared_out - private) // siblings


def peak_bytes() -> int:
    """Peak resident memory, with shared pages counted in full."""
    return _bytes_in(_text_of("status"), "VmHWM")


def _mappings_of(directory: Path) -> str:
    """Those parts of smaps that are about files in a directory. Each begins with addresses, and has the path last."""
    mappings = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", _text_of("smaps"), flags=re.MULTILINE)
    return "".join(each for each in mappings if f" {directory}/" in each.partition("\n")[0])


def _text_of(name: str) -> str:
    try:
        return (_PROCESS / name).read_text()
    except OSError:
        return ""


def _bytes_in(text: str, name: str) -> int:
    return sum(map(int, re.findall(rf"^{name}:\s+(\d+) kB$", text, re.MULTILINE))) * _KIB
