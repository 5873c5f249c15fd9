"""Limits of a backend, and its errors at them, on every rank."""

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limit:
    """Why a case is impossible, and the words of the refusal; without words it is not even tried."""

    why: str
    words: str = ""  # a regular expression

    def fits(self, refusal: Exception) -> bool:
        return bool(self.words) and re.search(self.words, str(refusal)) is not None


_NO_INT16 = Limit("gloo has no int16", "Invalid scalar type")
_NO_STRIDES = Limit("gloo takes no notice of strides, and numbers are wrong", "Tensor-likes are not equal")
_EQUAL_SIZES = Limit("gloo wants the same from every rank", "invalid tensor size at index")

GLOO = {
    **{f"reducing: all_reduce {name} of int16": _NO_INT16 for name in ("sum", "product", "min", "max")},
    **{f"reducing: all_reduce {name} of int16": _NO_INT16 for name in ("band", "bor", "bxor")},
    "spreading: broadcast int16": _NO_INT16,
    "spreading: all_gather int16": _NO_INT16,
    "reducing: all reduce of a tensor that is not contiguous": _NO_STRIDES,
    "spreading: broadcast into a tensor that is not contiguous": _NO_STRIDES,
    "spreading: all gather of different lengths": _EQUAL_SIZES,
    "spreading: all gather into tensor stacked": _EQUAL_SIZES,
    "spreading: all to all of a list of different lengths": _EQUAL_SIZES,
    "beginning: several beginnings with the same store": Limit("ranks find the addresses of the first world, and hang"),
}

RINGWIDE = {
    "groups: monitored barrier": Limit("torch offers it for gloo only", "only implemented for GLOO"),
}


def limits_of(backend: str) -> dict[str, Limit]:
    return {"gloo": GLOO, "ringwide": RINGWIDE}[backend]


def is_tried(backend: str, name: str) -> bool:
    return limits_of(backend).get(name, Limit("", "can")).words != ""
