"""What every node needs, imported before it joins; by a launcher once, in the process that its nodes are forked from.

Torch takes seconds to import and more than 100 MB. Nodes that are forked after it start at once and share its pages:
ten of them take less memory than three that import it themselves.
"""

import gc
import importlib

from ringwide.observe.statistics import resident_bytes

_before = resident_bytes()
importlib.import_module("torch")
OF_TORCH = resident_bytes() - _before

for name in (
    "uvloop",
    "ringwide.experiment.worker",
    "ringwide.training.checkpoint",
    "ringwide.training.loop",
):
    importlib.import_module(name)

# Collecting garbage writes to every object, and to write is to have a copy of one's own.
gc.collect()
gc.freeze()
