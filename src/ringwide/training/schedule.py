"""The learning rate of each step."""

from math import cos, pi

from ringwide.training.config import TrainingConfig


def learning_rate_at(config: TrainingConfig, step: int, last_step: int | None) -> float:
    """The learning rate rises in `warmup_steps`, then stays, or falls until the end and stays there. Steps count from
    1; the full rate is reached by at least one of them, so that a single step is not one of length zero."""
    if step < config.warmup_steps:
        return config.learning_rate * step / config.warmup_steps
    start, end = max(1, config.warmup_steps), config.decay_steps or last_step
    if config.schedule == "constant" or end is None or step <= start:
        return config.learning_rate
    if step >= end:
        return config.final_learning_rate
    fallen = (step - start) / (end - start)
    if config.schedule == "cosine":
        fallen = (1 - cos(pi * fallen)) / 2
    return config.learning_rate + fallen * (config.final_learning_rate - config.learning_rate)
