"""The store of torch at which ranks meet that torchrun, srun or mpirun has started; its errors become sentences."""

import ipaddress
import os
import socket
import time
from datetime import timedelta

from ringwide.bootstrap.launcher_env import AssignedRank
from ringwide.bootstrap.listen import is_loopback, listen, unresolvable
from ringwide.bootstrap.peers import Address
from ringwide.bootstrap.rendezvous import Store
from ringwide.errors import JoinError, StartTimeout

_PAUSE_SECONDS, _CONNECT_SECONDS = 0.1, 5.0
_LOG_LEVEL = "TORCH_CPP_LOG_LEVEL"


def open_store(place: AssignedRank, seconds: float) -> Store:
    """That of torchrun, or one that rank 0 opens."""
    master, deadline = place.master, time.monotonic() + seconds
    if master is None:
        raise JoinError(f"rank {place.rank} does not know where to meet the others")
    opens = place.rank == 0 and not place.hosted
    if not opens:
        _wait_until_open(place.rank, master, deadline, seconds)
    os.environ.setdefault(_LOG_LEVEL, "FATAL")  # what goes wrong is told once, in a sentence of ours
    import torch.distributed as dist

    listener = _private(master) if opens else None
    try:
        store: Store = dist.TCPStore(  # type: ignore[attr-defined]
            master.host,
            master.port,
            is_master=opens,
            timeout=timedelta(seconds=max(1.0, deadline - time.monotonic())),
            wait_for_workers=False,
            master_listen_fd=None if listener is None else listener.detach(),
        )
        return store
    except Exception as error:
        reason = str(error).partition("\n")[0]
        does = "open" if opens else "use"
        raise JoinError(f"rank {place.rank} cannot {does} the store at {master}, where ranks meet: {reason}") from error


def below(store: Store, prefix: str) -> Store:
    import torch.distributed as dist

    found: Store = dist.PrefixStore(prefix, store)  # type: ignore[attr-defined, arg-type]
    return found


def _private(master: Address) -> socket.socket | None:
    """Torch would listen everywhere. Where ranks meet on loopback, nobody else need reach the store."""
    if master.host == "localhost" or _is_loopback_address(master.host):
        listener = listen(master, rank=0, beyond_loopback=False)
        listener.setblocking(True)
        return listener
    return None


def _is_loopback_address(host: str) -> bool:
    try:
        return is_loopback(str(ipaddress.ip_address(host)))
    except ValueError:
        return False


def _wait_until_open(rank: int, master: Address, deadline: float, seconds: float) -> None:
    """Torch waits as well, but it is deaf to signals then, and does not say what for."""
    while True:
        try:
            socket.create_connection((master.host, master.port), timeout=_CONNECT_SECONDS).close()
            return
        except (socket.gaierror, UnicodeError) as error:
            raise unresolvable(master, error) from error
        except OSError as error:
            if time.monotonic() >= deadline:
                missing = [f"rank 0 (to open the store at {master}; {error.strerror or error})"]
                raise StartTimeout(rank=rank, missing=missing, seconds=seconds) from error
        time.sleep(_PAUSE_SECONDS)
