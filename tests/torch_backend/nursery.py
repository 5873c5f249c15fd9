"""Fork server for ranks: one process that has imported torch, and forks them. Started by sets.py.

A request is one line of JSON on stdin: which ranks, in which environment, what they do. The answer, when all of them
have ended, is a line with their exit codes. Ranks end with this process, and this process ends when its stdin does.
"""

import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch.distributed as dist
from tests.torch_backend import rank

from ringwide.experiment.forkserver import die_with_parent

PRELOADED = (  # what cases would import, each rank for itself
    "ringwide.torch",
    "ringwide.torch.init_group",
    "torch._dynamo.utils",
    "torch.distributed.optim",
    "torch.distributed.tensor",
    "torch.utils._sympy.reference",
)
for module in PRELOADED:
    importlib.import_module(module)

GRACE_SECONDS = 5  # for the others, after one has failed
LOOK_SECONDS = 0.02


def main() -> None:
    die_with_parent(os.getppid())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for pytest
    gc.collect()
    gc.freeze()  # what all ranks share need not be looked through, and so copied, by each
    for line in sys.stdin:
        request = json.loads(line)
        codes = _with_torchrun(request) if request["start"] == "torchrun" else _forked(request)
        print(json.dumps(codes), flush=True)


def _forked(request: dict[str, Any]) -> list[int]:
    children = [_fork(request, number) for number in range(request["size"])]
    return _codes(children, request)


def _fork(request: dict[str, Any], number: int) -> int:
    parent = os.getpid()
    child = os.fork()
    if child:
        return child
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    log = os.open(Path(request["directory"], f"rank{number}.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(request["environment"], RANK=str(number), LOCAL_RANK=str(number))
    dist.set_debug_level_from_env()
    rank.live(request)
    sys.exit()  # through all that Python and torch do at the end: a crash there is a crash


def _codes(children: list[int], request: dict[str, Any]) -> list[int]:
    """How they ended. After the first failure the others have a little time to end as well, if they don't live on."""
    codes: dict[int, int] = {}
    deadline = time.monotonic() + request["seconds"]
    while len(codes) < len(children):
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid in children:
            codes[pid] = os.waitstatus_to_exitcode(status)
            if codes[pid] and not request["others_live_on"]:
                deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
        elif time.monotonic() > deadline:
            for child in set(children) - codes.keys():
                os.kill(child, signal.SIGKILL)
            deadline += GRACE_SECONDS
        else:
            time.sleep(LOOK_SECONDS)
    return [codes[child] for child in children]


def _with_torchrun(request: dict[str, Any]) -> list[int]:
    task = Path(request["directory"], "task.json")
    task.write_text(json.dumps(request))
    address = f"{request['environment']['MASTER_ADDR']}:{request['environment']['MASTER_PORT']}"
    words = ["--nnodes=1", f"--nproc-per-node={request['size']}", f"--rdzv-endpoint={address}", "--rdzv-backend=c10d"]
    with Path(request["directory"], "rank0.log").open("w") as log:
        agent = subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", *words, "-m", "tests.torch_backend.rank", str(task)],
            stdout=log,
            stderr=log,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        try:
            return [agent.wait(timeout=request["seconds"])]
        except subprocess.TimeoutExpired:
            agent.terminate()  # ends its ranks
            with suppress(subprocess.TimeoutExpired):
                return [agent.wait(timeout=GRACE_SECONDS)]
            agent.kill()
            return [agent.wait()]


if __name__ == "__main__":
    main()
