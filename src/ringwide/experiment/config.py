"""What an experiment file may say."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from ringwide.config import RingConfig
from ringwide.experiment.loading import load_model
from ringwide.training.config import TrainingConfig


class ExperimentConfig(BaseModel):
    """One experiment: how many nodes, what ring they form and what they train."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1, max_length=100, description="What the experiment is called in its output.")
    nodes: int = Field(ge=1, le=256, description="How many nodes take part.")
    ring: RingConfig = Field(default=RingConfig.model_validate({}), description="How the nodes exchange gradients.")
    training: TrainingConfig = Field(default=TrainingConfig(), description="What the nodes train.")


def load_experiment(path: Path) -> ExperimentConfig:
    return load_model(path, ExperimentConfig)
