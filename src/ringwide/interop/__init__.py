"""ringwide inside other programs' ways: a backend of torch.distributed, and a communication hook for its DDP.

Importing this makes the backend known even where torch does not load backends by itself
(TORCH_DEVICE_BACKEND_AUTOLOAD=0).
"""

from ringwide.interop.hook import RingState, allreduce_hook
from ringwide.registration import register

register()

__all__ = ["RingState", "allreduce_hook"]
