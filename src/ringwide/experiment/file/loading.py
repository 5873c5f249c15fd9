"""An experiment file in, a checked configuration out; a mistake becomes one sentence that says where and what to do."""

from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from ringwide.config.document import Document, read_document
from ringwide.config.ring_config import RingConfig
from ringwide.config.validation import checked, overridden
from ringwide.errors import ConfigError
from ringwide.experiment.config import ExperimentConfig


def load_experiment(path: Path, overrides: Sequence[str] = ()) -> ExperimentConfig:
    """`overrides` are what the command line has after each --set: a dotted key, =, and a value as in the file."""
    return checked(overridden(read_document(path), overrides), ExperimentConfig)


class _RingAlone(BaseModel):
    """What can be said without an experiment."""

    model_config = ConfigDict(extra="forbid")

    ring: RingConfig = Field(default_factory=RingConfig)


def load_ring(overrides: Sequence[str]) -> RingConfig:
    """The settings of a ring from the command line alone, written as for an experiment: ring.lanes=2."""
    document = overridden(Document(Path("the command line"), {}, {}), overrides)
    for key in document.data:
        if key not in _RingAlone.model_fields:
            raise ConfigError(
                f"{document.place((key,))}: {key} is for an experiment; name its file with --config, or set keys of "
                "the ring alone, as in --set ring.encrypt=true"
            )
    return checked(document, _RingAlone).ring
