"""Configuration of an experiment: the keys of its file, how it is loaded, and the reference of all keys."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ByteSize, Field
from pydantic.fields import FieldInfo

from ringwide.config.document import Document, read_document
from ringwide.config.ring_config import RingConfig
from ringwide.config.validation import Settings, block_of, blocks, checked, overridden
from ringwide.config.yaml_text import written_size
from ringwide.errors import ConfigError
from ringwide.training.config import TrainingConfig

Logging = Literal["silent", "normal", "verbose"]
Figure = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class CheckpointConfig(Settings):
    """Checkpoints of the training, from which `--resume` continues to the same bits."""

    every_steps: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="Write one every so many steps, and one at the end; null: write no checkpoints."
    )
    keep: int = Field(default=2, ge=1, le=1000, description="How many to keep; older ones are removed.")
    directory: str | None = Field(
        default=None, min_length=1, description="Where to write them; by default `checkpoints` in the run's directory."
    )


class ReferenceConfig(Settings):
    """Figures of another system, shown in the report next to those of the run. Unknown ones are left out."""

    name: str = Field(min_length=1, max_length=200, description="Name of the system the figures are of.")
    batches: Figure | None = Field(default=None, description="Batches of all nodes together.")
    batches_per_second: Figure | None = Field(default=None, description="Batches of all nodes in a second.")
    throughput: ByteSize | None = Field(default=None, description="Bytes sent by all nodes in a second.")
    network_seconds: Figure | None = Field(default=None, description="Network time of a node.")
    memory: ByteSize | None = Field(default=None, description="Memory of all nodes together.")
    compression_ratio: Figure | None = Field(default=None, description="Raw bytes for each byte sent.")
    loss: Figure | None = Field(default=None, description="The mean loss at the end.")


class ReportConfig(Settings):
    """Files that a run writes."""

    directory: str = Field(default="runs", min_length=1, description="Where each run creates its directory.")
    html: bool = Field(default=True, description="Draw report.html as well as report.md.")
    notes: str = Field(default="", max_length=10_000, description="A paragraph for the reader of the report.")
    beside: tuple[ReferenceConfig, ...] = Field(default=(), description="Figures to show next to those of this run.")


class ExperimentConfig(Settings):
    """Experiment: how many nodes there are, the ring they form, what they train, and the files it writes."""

    name: str = Field(
        pattern=r"^\w[\w .,=-]*$",
        max_length=100,
        description="Name of the experiment, used in its output and its directory.",
    )
    nodes: int = Field(ge=1, le=256, description="How many nodes take part.")
    ring: RingConfig = Field(default=RingConfig.model_validate({}), description="How the nodes exchange gradients.")
    training: TrainingConfig = Field(default=TrainingConfig(), description="What the nodes train.")
    logging: Logging = Field(
        default="normal",
        description="silent: print nothing but errors; normal: progress and a summary; verbose: also a line for every"
        " step of every node, in its log file.",
    )
    checkpoint: CheckpointConfig = Field(
        default=CheckpointConfig(), description="Whether and when checkpoints are written."
    )
    report: ReportConfig = Field(default=ReportConfig(), description="Files that the run writes.")
    sweep: dict[str, list[Any]] = Field(
        default={},
        description="Keys, such as `ring.codec`, each with a list of values: every combination is run, one after the"
        " other, and they are compared in one report. A value may be a block: its keys are set together.",
    )


# -- loading


def load_experiment(path: Path, overrides: Sequence[str] = ()) -> ExperimentConfig:
    """Checked configuration of a file. Each override is the argument of a --set: a dotted key, =, a value in YAML."""
    return checked(overridden(read_document(path), overrides), ExperimentConfig)


class _RingAlone(Settings):
    """Keys that can be set without an experiment."""

    ring: RingConfig = Field(default_factory=RingConfig)


def load_ring(overrides: Sequence[str]) -> RingConfig:
    """Settings of a ring from the command line alone, written as for an experiment: ring.lanes=2."""
    document = overridden(Document(Path("the command line"), {}, {}), overrides)
    for key in document.data:
        if key not in _RingAlone.model_fields:
            raise ConfigError(
                f"{document.place((key,))}: {key} is for an experiment; name its file with --config, or set keys of "
                "the ring alone, as in --set ring.encrypt=true"
            )
    return checked(document, _RingAlone).ring


# -- reference of all keys

OUTERMOST = "The outermost keys"


def keys_reference() -> str:
    """Every key of an experiment file as Markdown, with a table for each block."""
    return "\n\n".join(_section(name, model) for name, model in blocks(ExperimentConfig))


def _section(name: str, model: type[BaseModel]) -> str:
    rows = [f"| `{key}` | {_default(field)} | {_meaning(key, field)} |" for key, field in model.model_fields.items()]
    title = f"`{name}`" if name else OUTERMOST
    return "\n".join([f"### {title}", "", "| key | default | meaning |", "| --- | --- | --- |", *rows])


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    return "a block" if isinstance(field.default, BaseModel) else f"`{_as_written(field.default)}`"


def _meaning(key: str, field: FieldInfo) -> str:
    see = " Its keys are below." if block_of(field) else ""
    return f"{field.description or key}{see}".replace("|", "\\|")


def _as_written(value: Any) -> str:
    match value:
        case ByteSize():
            return str(written_size(value))
        case None | True | False:
            return {None: "null", True: "true", False: "false"}[value]
        case tuple():
            return f"[{', '.join(map(_as_written, value))}]"
        case "":
            return '""'
    return str(value)
