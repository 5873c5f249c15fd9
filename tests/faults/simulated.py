"""The row of the simulator: many rings on a virtual clock, which no proxy could bring about so often."""

import re
import subprocess
import sys

from tests.faults.outcome import Run, Tally

SEEDS = 100_000


def simulated(seeds: int, *, first: int = 0) -> Tally:
    command = [sys.executable, "-m", "ringwide.simulator", "--seeds", str(seeds), "--first", str(first)]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = said.stdout.splitlines()
    print("\n".join(["simulator: every rank ends, none returns a wrong sum", *lines[-20:], said.stderr]), flush=True)
    found = re.search(r"(\d+) seeds, (\d+) failing", said.stdout)
    if found is None or (said.returncode != 0) != (int(found[2]) > 0):
        return Tally("simulator", (), [Run(complaints=[f"it ended with {said.returncode}: {said.stderr}"])])
    failing = [Run(complaints=[line]) for line in lines if line.startswith("seed ")]
    failing += [Run(complaints=["a seed"]) for _ in range(int(found[2]) - len(failing))]
    return Tally("simulator", (), failing, more=int(found[1]) - len(failing))
