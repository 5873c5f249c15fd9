"""Bindings for torch: the backend `ringwide` of torch.distributed, and a communication hook for DDP.

Because of the entry point `torch.backends`, torch imports this module in every program on a machine with ringwide
installed. So it imports nothing heavy, takes well under a millisecond, and never raises. Importing it by hand registers
the backend where torch does not load backends by itself (TORCH_DEVICE_BACKEND_AUTOLOAD=0).
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ringwide.torch.comm_hook import RingState, allreduce_hook


def register() -> None:
    """Register the backend's name with torch.distributed. Its code is imported on first use."""
    backend = getattr(sys.modules.get("torch.distributed"), "Backend", None)  # a torch without distributed has none
    try:
        if backend is not None and "RINGWIDE" not in backend._plugins:
            backend.register_backend("ringwide", _create, extended_api=True, devices=["cpu"])
    except Exception:  # a newer torch may differ, and this program may not use us at all
        return


def _create(options: Any, config: Any) -> Any:
    return import_module("ringwide.torch.init_group").create(options, config)


def __getattr__(name: str) -> Any:
    if name in __all__:
        from ringwide.errors import require_torch

        require_torch(f"ringwide.torch.{name}")
        return getattr(import_module("ringwide.torch.comm_hook"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


register()

__all__ = ["RingState", "allreduce_hook"]
