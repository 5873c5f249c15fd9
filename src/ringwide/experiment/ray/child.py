"""A node that a keeper started: it ends with the keeper, then is what `python -m ringwide.node` is.

python -m ringwide.experiment.ray.child KEEPER_PID IMPORT_FROM --rank 0 ...
"""

import os
import runpy
import sys

from ringwide.experiment.forkserver import call_this_process, end_with

NODE = "ringwide.node"


def main(keeper: str, import_from: str, *words: str) -> None:
    end_with(int(keeper))
    call_this_process(f"ringwide-{words[words.index('--rank') + 1]}")
    sys.path[:0] = [path for path in import_from.split(os.pathsep) if path and path not in sys.path]
    sys.argv = [NODE, *words]
    runpy.run_module(NODE, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
