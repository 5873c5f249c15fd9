"""Two processes that find out what this machine can do: `python -m bench.speed.raw_worker`.

| what | |
| --- | --- |
| `stream tcp`, `stream unix` | both send to each other at once, from and to memory of the tensor's size |
| `stream tcp, cached` | the same from and to 1 MiB, which stays in the cache |
| `ping tcp`, `ping unix` | there and back; `spin`: without sleeping, as only ranks with a core each can afford to |
| `copy`, `add` | of float32 from one array to another, in one process |

Sockets have buffers of 4 MiB; a thread sends while another receives, since both release the interpreter's lock.
"""

import functools
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from bench.speed.conversation import Leader, Message, fork_ranks, serve

SOCKET_BUFFER = 2**22
PIECE = CACHED_BYTES = 2**20
LEAST_STREAM, MOST_STREAM = 2**24, 2**27  # bytes of one call each way: to be worth timing, and not to take forever


class Pair:
    """One of two processes that have a connection of each kind."""

    def __init__(self, rank: int, listeners: dict[str, socket.socket]) -> None:
        self._rank = rank
        if rank == 0:
            self._sockets = {kind: listener.accept()[0] for kind, listener in listeners.items()}
        else:
            self._sockets = {kind: _connect(listener) for kind, listener in listeners.items()}
        for sock in self._sockets.values():
            _tune(sock)

    def carry_out(self, order: Message) -> Message:
        if order["do"] == "join":
            return {"versions": {}}
        call = self._prepare(order)
        if call is None:
            return {"seconds": []}
        call()
        return {"seconds": [_timed(call) for _ in range(order["calls"])], "moved": moved(order)}

    def _prepare(self, order: Message) -> Callable[[], object] | None:
        what, _, kind = order["what"].partition(" ")
        match what:
            case "stream":
                kind, _, cached = kind.partition(", ")
                memory = CACHED_BYTES if cached else order["bytes"]
                return functools.partial(swap, self._sockets[kind], _filled(memory), _filled(memory), moved(order))
            case "ping":
                ping = _spinning_ping if order["spin"] else _sleeping_ping
                return functools.partial(ping, self._sockets[kind], _filled(order["bytes"]), self._rank == 0)
            case _:
                return _in_memory(what, order["bytes"]) if self._rank == 0 else None


def moved(order: Message) -> int:
    """Bytes of one call, each way."""
    if order["what"].startswith("stream"):
        return int(min(max(order["bytes"], LEAST_STREAM), MOST_STREAM))
    return int(order["bytes"])


def swap(sock: socket.socket, outgoing: Any, incoming: Any, total: int) -> None:
    """A byte each way first, so that both begin together."""
    sock.sendall(b"!")
    sock.recv(1)
    sending = threading.Thread(target=_in_pieces, args=(sock.send, outgoing, total))
    sending.start()
    _in_pieces(sock.recv_into, incoming, total)
    sending.join()


def _in_pieces(move: Callable[[Any], int], memory: Any, total: int) -> None:
    """Round and round in the memory, until all is done."""
    done = 0
    while done < total:
        place = done % len(memory)
        done += move(memory[place : place + min(PIECE, total - done)])


def _sleeping_ping(sock: socket.socket, memory: Any, first: bool) -> None:
    if first:
        sock.sendall(memory)
    _receive(sock, memory, 0)
    if not first:
        sock.sendall(memory)


def _spinning_ping(sock: socket.socket, memory: Any, first: bool) -> None:
    if first:
        sock.sendall(memory)
    _receive(sock, memory, socket.MSG_DONTWAIT)
    if not first:
        sock.sendall(memory)


def _receive(sock: socket.socket, memory: Any, flags: int) -> None:
    done = 0
    while done < len(memory):
        try:
            done += sock.recv_into(memory[done:], 0, flags)
        except BlockingIOError:
            continue


def _in_memory(what: str, nbytes: int) -> Callable[[], object]:
    one, other = np.ones(nbytes // 4, np.float32), np.zeros(nbytes // 4, np.float32)
    if what == "copy":
        return functools.partial(np.copyto, other, one)
    return functools.partial(np.add, other, one, out=other)


def _filled(nbytes: int) -> memoryview:
    """Memory that the kernel has really given: untouched pages are all the same page of zeros."""
    return np.ones(nbytes, np.uint8).data.cast("B")


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _listen(family: socket.AddressFamily, address: Any) -> socket.socket:
    listener = socket.socket(family)
    _tune(listener)
    listener.bind(address)
    listener.listen(1)
    return listener


def _connect(listener: socket.socket) -> socket.socket:
    sock = socket.socket(listener.family)
    _tune(sock)
    sock.connect(listener.getsockname())
    return sock


def _tune(sock: socket.socket) -> None:
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        sock.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER)
    if sock.family == socket.AF_INET:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def run_rank(listeners: dict[str, socket.socket], rank: int) -> None:
    serve(Leader(rank), Pair(rank, listeners).carry_out)


if __name__ == "__main__":
    listening = {
        "tcp": _listen(socket.AF_INET, ("127.0.0.1", 0)),
        "unix": _listen(socket.AF_UNIX, f"\0bench-speed-{os.getpid()}"),  # abstract: nothing stays behind
    }
    fork_ranks(2, functools.partial(run_rank, listening))
