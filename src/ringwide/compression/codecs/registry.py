"""All codecs, by their names in settings and their numbers on the wire. A new codec is one class and one line here."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ringwide.compression.codecs.base import Codec, Raw
from ringwide.compression.codecs.deflate import Zlib
from ringwide.compression.codecs.half import Bfloat16, Float16
from ringwide.compression.codecs.int8 import Int8
from ringwide.compression.codecs.lz4 import Lz4Block, Lz4Frame
from ringwide.compression.codecs.shuffle import Shuffled
from ringwide.compression.codecs.topk import TopK


@dataclass(frozen=True, slots=True)
class Line:
    """Constructor of a codec, and the settings it takes."""

    make: Callable[..., Codec]
    levels: range | None = None
    accelerations: range | None = None
    shuffles: bool = False
    fraction: bool = False


LINES = (
    Line(Raw),
    Line(Lz4Block, accelerations=range(1, 65_538), shuffles=True),
    Line(Lz4Frame, levels=range(17), shuffles=True),
    Line(Zlib, levels=range(1, 10), shuffles=True),
    Line(Bfloat16),
    Line(Float16),
    Line(Int8),
    Line(TopK, fraction=True),
)

_LINE_OF = {line.make().name: line for line in LINES}
NAMES = tuple(_LINE_OF)
LOSSY = tuple(name for name, line in _LINE_OF.items() if line.make().lossy)
LOSSLESS = tuple(name for name in NAMES if name not in LOSSY)

_PLAIN = [line.make() for line in LINES]
_SHUFFLED: list[Codec] = [Shuffled(line.make()) for line in LINES if line.shuffles]
_DECODERS: dict[int, Codec] = {codec.number: codec for codec in _PLAIN + _SHUFFLED}


def decoder(number: int) -> Codec | None:
    """The codec that reads payloads with this number on the wire."""
    return _DECODERS.get(number)


def make(
    name: str,
    *,
    level: int | None = None,
    acceleration: int | None = None,
    shuffle: bool = False,
    fraction: float | None = None,
) -> Codec:
    """The codec of these settings. A ValueError says in one sentence which of them is wrong and what would be right."""
    if name not in _LINE_OF:
        raise ValueError(f"codec {name!r}: there are {listed(NAMES)}")
    line = _LINE_OF[name]
    settings: dict[str, Any] = {}
    if level is not None:
        settings["level"] = checked_level(name, line, level)
    if acceleration is not None:
        settings["acceleration"] = checked_acceleration(name, line, acceleration)
    if fraction is not None:
        settings["fraction"] = checked_fraction(name, line, fraction)
    if shuffle and not line.shuffles:
        shuffling = listed([other for other, line in _LINE_OF.items() if line.shuffles])
        raise ValueError(f"codec_shuffle: {name} cannot be shuffled, {shuffling} can")
    codec = line.make(**settings)
    return Shuffled(codec) if shuffle else codec


def checked_level(name: str, line: Line, level: int) -> int:
    if line.levels is None:
        with_levels = listed([other for other, line in _LINE_OF.items() if line.levels is not None])
        raise ValueError(f"codec_level {level}: {name} has no levels, {with_levels} have")
    if level not in line.levels:
        raise ValueError(f"codec_level {level}: {name} has levels {ends(line.levels)}")
    return level


def checked_acceleration(name: str, line: Line, acceleration: int) -> int:
    if line.accelerations is None:
        raise ValueError(f"codec_acceleration {acceleration}: {name} has none, only lz4 has")
    if acceleration not in line.accelerations:
        raise ValueError(f"codec_acceleration {acceleration}: {name} takes {ends(line.accelerations)}")
    return acceleration


def checked_fraction(name: str, line: Line, fraction: float) -> float:
    if not line.fraction:
        raise ValueError(f"topk_fraction {fraction}: it is for codec topk, not {name}")
    if not 0 < fraction <= 1:
        raise ValueError(f"topk_fraction {fraction}: it must be above 0 and at most 1")
    return fraction


def ends(values: range) -> str:
    return f"{values[0]} to {values[-1]}"


def listed(names: list[str] | tuple[str, ...]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}"


AUTO = (make("lz4"), make("lz4", shuffle=True), make("zlib"), make("bf16"), make("int8"))
"""Candidates of `auto`. Not topk: its error in one call has no bound, so it must be asked for by name."""
