"""Child process of a keeper: dies with the keeper, and otherwise behaves as `python -m ringwide.node`.

python -m ringwide.experiment.ray.child KEEPER_PID IMPORT_FROM --rank 0 ...
"""

import os
import runpy
import sys

from ringwide.experiment.forkserver import die_with_parent, set_process_name

NODE = "ringwide.node"


def main(keeper: str, import_from: str, *arguments: str) -> None:
    die_with_parent(int(keeper))
    set_process_name(f"ringwide-{arguments[arguments.index('--rank') + 1]}")
    sys.path[:0] = [path for path in import_from.split(os.pathsep) if path and path not in sys.path]
    sys.argv = [NODE, *arguments]
    runpy.run_module(NODE, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
