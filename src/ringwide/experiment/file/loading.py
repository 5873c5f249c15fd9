"""An experiment file in, a checked configuration out; a mistake becomes one sentence that says where and what to do."""

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from ringwide.config import RingConfig
from ringwide.errors import ConfigError
from ringwide.experiment.config import ExperimentConfig
from ringwide.experiment.file.document import Document, read_document
from ringwide.experiment.file.mistakes import sentence
from ringwide.experiment.file.parsing import KeyPath, parse
from ringwide.membership.filenames import concealed

Model = TypeVar("Model", bound=BaseModel)

OVERRIDE_EXAMPLE = "write --set KEY=VALUE, as in --set ring.buffer_bytes=8MiB"


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


def overridden(document: Document, overrides: Sequence[str]) -> Document:
    if not overrides:
        return document
    document = document.layer()
    for text in overrides:
        document = _with_override(document, text)
    return document


def _with_override(document: Document, text: str) -> Document:
    place = f"--set {concealed(text)}"
    key, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"{place}: there is no value; {OVERRIDE_EXAMPLE}")
    key_path = _key_path(key.strip())
    if not all(key_path):
        raise ConfigError(f"{place}: there is no key before the = or beside a dot; {OVERRIDE_EXAMPLE}")
    data, places = parse(value, lambda _: place, key_path)
    return document.with_change(key_path, data, places, place)


def _key_path(key: str) -> KeyPath:
    """The keys of a sweep have dots themselves: `sweep.ring.codec` is the key `ring.codec` of `sweep`."""
    block, dot, rest = key.partition(".")
    return (block, rest) if dot and block == "sweep" else tuple(key.split("."))


def checked(document: Document, model: type[Model]) -> Model:
    try:
        return model.model_validate(document.data)
    except ValidationError as error:
        mistakes = error.errors(include_url=False)
        raise ConfigError(sentence(mistakes, _guilty(document, model, mistakes[0]), model)) from error


def _guilty(document: Document, model: type[Model], mistake: ErrorDetails) -> Document:
    """The document to name: a mistake that is there without some of the changes is not theirs."""
    for simpler in document.simpler():
        if mistake["msg"] in _mistakes_at(mistake["loc"], simpler, model):
            return _guilty(simpler, model, mistake)
    return document


def _mistakes_at(key_path: KeyPath, document: Document, model: type[Model]) -> set[str]:
    try:
        model.model_validate(document.data)
    except ValidationError as error:
        return {mistake["msg"] for mistake in error.errors(include_url=False) if mistake["loc"] == key_path}
    return set()
