"""What decides the bits that a run computes. It may not change when the run goes on from a checkpoint."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from ringwide.errors import ConfigError
from ringwide.training.config import TrainingConfig

# What may differ: when it ends and what it looks at on the way, not what it computes. Where the learning rate has
# fallen is compared as the step that it comes to.
MAY_CHANGE = {"steps", "epochs", "seconds", "evaluate_every_steps", "overlap", "decay_steps"}


@dataclass(frozen=True, slots=True)
class Terms:
    nodes: int
    training: Mapping[str, Any]
    ring: Mapping[str, Any]  # those of its settings that decide bits
    decay_end: int | None  # the step at which the learning rate has fallen; none: it does not fall
    data: str  # its fingerprint

    def as_state(self) -> dict[str, Any]:
        return asdict(self)


def terms_of(
    config: TrainingConfig, *, nodes: int, ring: Mapping[str, Any], last_step: int | None, data: bytes
) -> Terms:
    falls = config.schedule != "constant"
    return Terms(
        nodes=nodes,
        training=config.model_dump(mode="json", exclude=MAY_CHANGE),
        ring=dict(ring),
        decay_end=(config.decay_steps or last_step) if falls else None,
        data=data.hex(),
    )


def require_equal_terms(then: Terms, now: Terms, path: object) -> None:
    """`path`: the checkpoint, to name it."""
    if then.nodes != now.nodes:
        raise ConfigError(f"{path}: written by {then.nodes} nodes, this run has {now.nodes}; use as many")
    _require_equal_settings("training", then.training, now.training, path)
    _require_equal_settings("ring", then.ring, now.ring, path)
    if then.decay_end != now.decay_end:
        raise ConfigError(
            f"{path}: written with a learning rate that falls until step {then.decay_end}, in this run it would fall"
            f" until step {now.decay_end}; set training.decay_steps: {then.decay_end}"
        )
    if then.data != now.data:
        raise ConfigError(
            f"{path}: written with other data than training.data: {now.training['data']!r} gives now"
            f" (fingerprints {then.data[:16]} and {now.data[:16]}); give it the same, or start anew without --resume"
        )


def _require_equal_settings(block: str, then: Mapping[str, Any], now: Mapping[str, Any], path: object) -> None:
    for key in sorted(then.keys() | now.keys()):
        if then.get(key) != now.get(key):
            raise ConfigError(
                f"{path}: written with {block}.{key}: {then.get(key)!r}, this run has {now.get(key)!r}; use the same"
            )


def require_equal_models(then: Mapping[str, Any], now: Mapping[str, Any], path: object) -> None:
    """Before torch loads one into the other: it would name all differences, on many lines."""
    for name in [*now, *then]:
        was, is_now = _told(then.get(name)), _told(now.get(name))
        if was != is_now:
            raise ConfigError(
                f"{path}: written with another model: {name!r} was {was} then, and is {is_now} in this run;"
                " use the same model"
            )


def _told(value: Any) -> str:
    if value is None:
        return "not there"
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__}"
    return f"{str(value.dtype).removeprefix('torch.')} of shape {tuple(value.shape)}"
