"""Imports that every node needs before it joins; a launcher makes them once, in the process it forks its nodes from.

Torch takes seconds to import and more than 100 MB. Nodes that are forked after the import start at once and share its
pages: ten of them take less memory than three that import it themselves.
"""

import gc
import importlib

for name in (
    "torch",
    "uvloop",
    "ringwide.experiment.worker",
    "ringwide.training.checkpoint",
    "ringwide.training.loop",
):
    importlib.import_module(name)

# A garbage collection writes to every object, and a write to a shared page copies it.
gc.collect()
gc.freeze()
