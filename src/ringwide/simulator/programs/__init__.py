"""Random programs, the same on every rank, on the real call boundary: whatever they do, no number is wrong.

A seed is a program (`program.py`, drawn by `drawing.py`): tasks, gathers, task groups, cancellations, mistakes of one
rank, channels, tensors that share memory, slow ranks, early leavers. Every rank carries it out (`performer.py`) and
writes down what became of each call (`journal.py`). `expectations.py` says of each call what may keep it from succeeding, and
`verdict.py` compares: a result is exact, an error is one that the program explains, and everything else is a problem.

The ranks are either simulated (`world.py`): the real `Ring` and everything below it but the connections, each rank on
an event loop of its own (`loop.py`), all loops on one virtual clock; or real processes (`processes.py`).
"""
