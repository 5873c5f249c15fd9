"""Where the processes come from: one that has imported what they need, and forks them. Started by crew.py.

A request is one datagram, JSON, with the child's end of its control socket; the answer is its process id. Children end
with this process, and this process ends when the harness does.
"""

import array
import gc
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import tests.faults.rank as rank

import ringwide
from ringwide.experiment.forkserver import die_with_parent

ringwide.join  # noqa: B018 - imported now, once for all


def main(descriptor: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a child of a terminal: Ctrl-C is for the harness
    gc.freeze()  # what all children share need not be looked through by each
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children leave nothing to wait for
    with socket.socket(fileno=descriptor) as requests:
        while received := _received(requests):
            words, control = received
            child = _fork(requests, words, control)
            control.close()
            requests.send(str(child).encode())


def _received(requests: socket.socket) -> "tuple[dict[str, Any], socket.socket] | None":
    try:
        data, ancillary, _, _ = requests.recvmsg(4096, socket.CMSG_LEN(4))
    except ConnectionError:
        return None
    if not data:
        return None
    return json.loads(data), socket.socket(fileno=array.array("i", ancillary[0][2])[0])


def _fork(requests: socket.socket, words: dict[str, Any], control: socket.socket) -> int:
    parent = os.getpid()
    child = os.fork()
    if child:
        return child
    try:
        die_with_parent(parent)
        requests.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        rank.live(control, Path(words["book"]), words["loop"])
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main(int(sys.argv[1]))
