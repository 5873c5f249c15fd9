"""Somebody wants training to stop. Apart from the pulse, so that who asks need not import torch."""

from dataclasses import dataclass


@dataclass(slots=True)
class StopRequest:
    """`signal`: the one this rank has heard; 0: none."""

    signal: int = 0
