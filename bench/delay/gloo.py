"""gloo through the proxy: its ranks are told that the others listen where the proxy does.

gloo's ranks tell each other through a store where they listen, and have no setting for another address. So the store is
ours: it changes the port in what a rank says of itself, and writes the real one down for the proxy.

Of two ranks the one with the lower address listens and the other dials, and each compares its own real address with
what it was told of the other. Both come to the same result only if the proxy before rank 0 has a lower port than any
that the kernel gives away, and the one before rank 1 a higher one: so it works for two ranks, and not for more.
"""

import os
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

LOOPBACK_INTERFACE = "lo"
SOCKADDR = re.compile(rb"\x02\x00(..)\x7f\x00\x00\x01", re.DOTALL)
"""AF_INET, the port, 127.0.0.1, as the kernel has it in memory."""
TIMEOUT = timedelta(seconds=60)


def with_port(value: bytes, port: int) -> tuple[bytes, int] | None:
    """The same with this port in its address, and the port that was there; none: there is no address in it."""
    found = SOCKADDR.search(value)
    if found is None:
        return None
    changed = value[: found.start(1)] + port.to_bytes(2, "big") + value[found.end(1) :]
    return changed, int.from_bytes(found[1], "big")


class DivertingStore(dist.Store):
    """A store to which this rank's address is told as the proxy's."""

    def __init__(self, store: dist.Store, *, port: int, real: Path) -> None:
        super().__init__()
        self._store, self._port, self._real = store, port, real
        self.diverted = False

    def set(self, key: str, value: Any) -> None:
        changed = with_port(value, self._port) if isinstance(value, bytes) else None
        if changed is not None:
            value, real = changed
            beside = self._real.with_suffix(".new")
            beside.write_text(str(real))
            beside.rename(self._real)
            self.diverted = True
        self._store.set(key, value)

    def get(self, key: str) -> bytes:
        return bytes(self._store.get(key))

    def add(self, key: str, number: int) -> int:
        return int(self._store.add(key, number))

    def wait(self, keys: list[str], timeout: timedelta = TIMEOUT) -> None:
        self._store.wait(keys, timeout)

    def check(self, keys: list[str]) -> bool:
        return bool(self._store.check(keys))

    def delete_key(self, key: str) -> bool:
        return bool(self._store.delete_key(key))

    def set_timeout(self, timeout: timedelta) -> None:
        self._store.set_timeout(timeout)


def join(rank: int, size: int, *, store: str, port: int, real: str) -> None:
    """The default group of torch.distributed, with a proxy at this port before this rank."""
    os.environ["GLOO_SOCKET_IFNAME"] = LOOPBACK_INTERFACE
    host, _, at = store.rpartition(":")
    inner = dist.TCPStore(host, int(at), size, is_master=rank == 0, timeout=TIMEOUT)
    diverting = DivertingStore(inner, port=port, real=Path(real))
    dist.init_process_group("gloo", store=diverting, rank=rank, world_size=size, timeout=TIMEOUT)
    if not diverting.diverted:
        raise SystemExit("bench: this gloo tells no address that we understand, so it would pass the proxy by")
