"""ringwide: peer-to-peer ring all-reduce on asyncio, for the machines and networks you have.

    async with ringwide.join(rank=0, peers="peers.txt") as ring:
        await ring.allreduce(grads)

Names are loaded on first use, so importing the package costs next to nothing and never imports torch.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "join": "ringwide.ring",
    "Ring": "ringwide.ring",
    "Call": "ringwide.runtime.call",
    "join_blocking": "ringwide.blocking",
    "BlockingRing": "ringwide.blocking",
    "RingConfig": "ringwide.config.ring_config",
    "CodecName": "ringwide.config",
    "OpName": "ringwide.tensors.arithmetic",
    "RingwideError": "ringwide.errors",
    "ConfigError": "ringwide.errors",
    "TorchMissing": "ringwide.errors",
    "JoinError": "ringwide.errors",
    "AddressError": "ringwide.errors",
    "Disagreement": "ringwide.errors",
    "StartTimeout": "ringwide.errors",
    "CollectiveError": "ringwide.errors",
    "CollectiveMismatch": "ringwide.errors",
    "MessageMismatch": "ringwide.errors",
    "CollectiveAborted": "ringwide.errors",
    "CollectiveTimeout": "ringwide.errors",
    "NonfiniteInput": "ringwide.errors",
    "TensorInUse": "ringwide.errors",
    "PeerLost": "ringwide.errors",
    "PeerLeft": "ringwide.errors",
    "RemoteProtocolError": "ringwide.errors",
    "CorruptFrame": "ringwide.errors",
    "RingClosed": "ringwide.errors",
}

__all__ = [*_HOME, "__version__"]

if "torch.distributed" in sys.modules:  # otherwise torch does this when it is imported
    import_module("ringwide.torch")

if TYPE_CHECKING:
    from ringwide.blocking import BlockingRing as BlockingRing
    from ringwide.blocking import join_blocking as join_blocking
    from ringwide.config import CodecName as CodecName
    from ringwide.config.ring_config import RingConfig as RingConfig
    from ringwide.errors import AddressError as AddressError
    from ringwide.errors import CollectiveAborted as CollectiveAborted
    from ringwide.errors import CollectiveError as CollectiveError
    from ringwide.errors import CollectiveMismatch as CollectiveMismatch
    from ringwide.errors import CollectiveTimeout as CollectiveTimeout
    from ringwide.errors import ConfigError as ConfigError
    from ringwide.errors import CorruptFrame as CorruptFrame
    from ringwide.errors import Disagreement as Disagreement
    from ringwide.errors import JoinError as JoinError
    from ringwide.errors import MessageMismatch as MessageMismatch
    from ringwide.errors import NonfiniteInput as NonfiniteInput
    from ringwide.errors import PeerLeft as PeerLeft
    from ringwide.errors import PeerLost as PeerLost
    from ringwide.errors import RemoteProtocolError as RemoteProtocolError
    from ringwide.errors import RingClosed as RingClosed
    from ringwide.errors import RingwideError as RingwideError
    from ringwide.errors import StartTimeout as StartTimeout
    from ringwide.errors import TensorInUse as TensorInUse
    from ringwide.errors import TorchMissing as TorchMissing
    from ringwide.ring import Ring as Ring
    from ringwide.ring import join as join
    from ringwide.runtime.call import Call as Call
    from ringwide.tensors.arithmetic import OpName as OpName


def __getattr__(name: str) -> Any:
    if name == "torch":  # a package, not a name from one
        return import_module("ringwide.torch")
    if name not in _HOME:
        raise AttributeError(f"module 'ringwide' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
