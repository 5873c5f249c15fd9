"""Random programs of users, the same on every rank, on the real `Ring`: whatever they do, no number is wrong.

A seed is a program (`program.py`, drawn by `drawing.py`): tasks, gathers, task groups, cancellations, mistakes of one
rank, channels, tensors that share memory, slow ranks, early leavers. Every rank runs it (`runner.py`) and records how
each call ends (`journal.py`). `verdict.py` derives what may keep each call from succeeding, and compares: a result is
exact, an error is one that the program explains, and everything else is a problem.

The ranks are either simulated (`world.py`) or real processes (`processes.py`). Simulated ranks use the real `Ring` and
everything below it but the connections, each on an event loop of its own (`engine.py`), all on one virtual clock.
"""
