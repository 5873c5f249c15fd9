"""Many ranks of the real machines on a virtual clock: one seed is one life of a ring, the same at every replay.

Real here: `Dispatcher`, `Operation`, `Planner`, `Coder`, every codec, every protocol machine and the `FrameReader`.
Simulated: time, rng, the connections between ranks, their hosts and signs of life, the codec_pool that encodes and
decodes, the people who call, and all that goes wrong: `faults.py` lists it, `verdict.py` says what may come of it, and
`promptness.py` how soon.
No asyncio, no sockets, no threads, no real time.

    outcome = simulate(seed=7)
    assert not outcome.problems
"""

from ringwide.simulator.life import LifeOutcome, simulate

__all__ = ["LifeOutcome", "simulate"]
