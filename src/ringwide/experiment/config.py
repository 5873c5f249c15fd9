"""What an experiment file may say."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ByteSize, ConfigDict, Field

from ringwide.config.ring_config import RingConfig
from ringwide.training.config import TrainingConfig

Logging = Literal["silent", "normal", "verbose"]
Figure = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class CheckpointConfig(BaseModel):
    """When the state of the training is kept, so that `--resume` can go on from it to the same bits."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    every_steps: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="Write one every so many steps, and one at the end; none: write no checkpoints."
    )
    keep: int = Field(default=2, ge=1, le=1000, description="How many are kept; older ones are removed.")
    directory: str | None = Field(
        default=None, min_length=1, description="Where they are; `checkpoints` in the run's own directory if not given."
    )


class Reference(BaseModel):
    """Figures of something else, shown in the report beside those of the run. What is not known is left out."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1, max_length=200, description="What these are the figures of.")
    batches: Figure | None = Field(default=None, description="Batches of all nodes together.")
    batches_per_second: Figure | None = Field(default=None, description="Batches of all nodes in a second.")
    throughput: ByteSize | None = Field(default=None, description="Bytes sent by all nodes in a second.")
    network_seconds: Figure | None = Field(default=None, description="Network time of a node.")
    memory: ByteSize | None = Field(default=None, description="Memory of all nodes together.")
    compression_ratio: Figure | None = Field(default=None, description="Raw bytes for each byte sent.")
    loss: Figure | None = Field(default=None, description="The mean loss at the end.")


class ReportConfig(BaseModel):
    """What a run leaves behind."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    directory: str = Field(default="runs", min_length=1, description="Where each run gets a directory of its own.")
    html: bool = Field(default=True, description="Draw report.html beside the tables and figures.")
    notes: str = Field(default="", max_length=10_000, description="A paragraph for the reader of the report.")
    beside: tuple[Reference, ...] = Field(default=(), description="Figures to show beside those of this run.")


class ExperimentConfig(BaseModel):
    """One experiment: how many nodes, what ring they form, what they train, and what it leaves behind."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(
        pattern=r"^\w[\w .,=-]*$", max_length=100, description="What it is called: in its output, and in its directory."
    )
    nodes: int = Field(ge=1, le=256, description="How many nodes take part.")
    ring: RingConfig = Field(default=RingConfig.model_validate({}), description="How the nodes exchange gradients.")
    training: TrainingConfig = Field(default=TrainingConfig(), description="What the nodes train.")
    logging: Logging = Field(
        default="normal",
        description="silent: print nothing but errors; normal: progress and a summary; verbose: also a line for every"
        " step of every node, in its log file.",
    )
    checkpoint: CheckpointConfig = Field(default=CheckpointConfig(), description="Whether and when state is kept.")
    report: ReportConfig = Field(default=ReportConfig(), description="What the run leaves behind.")
    sweep: dict[str, list[Any]] = Field(
        default={},
        description="Keys, such as `ring.codec`, each with a list of values: every combination is run, one after the"
        " other, and they are compared in one report. A value may be a block: its keys are set together.",
    )
