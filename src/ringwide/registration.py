"""`torch.distributed.init_process_group("ringwide")` without an import: torch calls `register` when it is imported.

It does so in every program on a machine that has ringwide installed, whatever that program is about. So this imports
nothing heavy, takes well under a millisecond, and never raises.
"""

import sys
from importlib import import_module
from typing import Any


def register() -> None:
    """Tell torch.distributed the name. What it stands for is imported when somebody asks for it."""
    backend = getattr(sys.modules.get("torch.distributed"), "Backend", None)  # a torch without distributed has none
    try:
        if backend is not None and "RINGWIDE" not in backend._plugins:
            backend.register_backend("ringwide", _create, extended_api=True, devices=["cpu"])
    except Exception:  # whatever torch has changed: this program may never ask for us
        return


def _create(options: Any, config: Any) -> Any:
    return import_module("ringwide.interop.creation").create(options, config)
