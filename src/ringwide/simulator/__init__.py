"""Simulator of whole rings on a virtual clock: one seed is one life of a ring, the same at every replay.

Real here: `Dispatcher`, `Operation`, `Planner`, `CodecPolicy`, every codec, every protocol machine and `FrameReader`.
Simulated: time, randomness, the connections between ranks, their hosts and heartbeats, the pool that encodes and
decodes, the callers, and all faults. `scenario.py` lists the faults; `verdict.py` says which errors they may cause, and
how soon. There is no asyncio, no socket, no thread and no real time.

    outcome = simulate(seed=7)
    assert not outcome.problems
"""

from ringwide.simulator.ring_life import LifeOutcome, simulate

__all__ = ["LifeOutcome", "simulate"]
