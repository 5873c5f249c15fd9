"""How wrong a model is.

A loss is the mean over samples, as torch's own are. A sample with many targets, such as a text, counts once: with their
mean. Classes are the last dimension of the outputs.
"""

from collections.abc import Callable

from torch import Tensor
from torch.nn import functional

from ringwide.errors import ConfigError
from ringwide.training.config import TrainingConfig
from ringwide.training.own import guarded, resolve

Loss = Callable[[Tensor, Tensor], Tensor]


def loss_function(config: TrainingConfig) -> Loss:
    match config.loss:
        case "cross_entropy":
            return cross_entropy
        case "mse":
            return mse
        case path:
            return _own(path)


def _own(path: str) -> Loss:
    where = f"training.loss: {path!r}"
    function = guarded(resolve(path, "training.loss"), where)

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        given = function(outputs, targets)
        if not isinstance(given, Tensor) or given.dim():
            shape = f" of shape {tuple(given.shape)}" if isinstance(given, Tensor) else ""
            given_instead = f"returned a {type(given).__name__}{shape}"
            raise ConfigError(
                f"{where}: {given_instead}; it should return the mean over samples, a tensor of one number"
            )
        if outputs.requires_grad and not given.requires_grad:
            raise ConfigError(f"{where}: returned a tensor without gradients; look for detach, no_grad or numpy in it")
        return given

    return loss


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    try:
        if targets.dim() == 1 or targets.is_floating_point():
            return functional.cross_entropy(outputs, targets)
        return functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())
    except (RuntimeError, ValueError, IndexError) as error:
        raise ConfigError(f"training.loss: 'cross_entropy': {_shapes(outputs, targets)}: {error}") from error


def mse(outputs: Tensor, targets: Tensor) -> Tensor:
    if outputs.shape != targets.shape:
        if outputs.numel() != targets.numel() or len(outputs) != len(targets):
            # Torch would only warn, stretch one of them over the other and compute something else.
            raise ConfigError(f"training.loss: 'mse': {_shapes(outputs, targets)}; they should be the same")
        outputs = outputs.view_as(targets)
    return functional.mse_loss(outputs, targets)


def correct(outputs: Tensor, targets: Tensor) -> float | None:
    """How many samples are right, where one with many targets counts with the part that is; none without classes."""
    if targets.is_floating_point() or outputs.shape[:-1] != targets.shape:
        return None
    right = (outputs.argmax(dim=-1) == targets).sum().item()
    return right * len(targets) / max(1, targets.numel())


def _shapes(outputs: Tensor, targets: Tensor) -> str:
    return f"the model's outputs have shape {tuple(outputs.shape)}, the targets {tuple(targets.shape)}"
