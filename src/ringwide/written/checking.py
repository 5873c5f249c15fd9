"""What was written, changed as the command line says, and checked by a model; a mistake becomes one sentence."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from ringwide.errors import ConfigError
from ringwide.membership.filenames import concealed
from ringwide.written.document import Document
from ringwide.written.mistakes import sentence
from ringwide.written.parsing import KeyPath, parse

Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Way:
    """How somebody may change a key without touching the file."""

    name: str
    example: str


BY_OPTION = Way("--set", "write --set KEY=VALUE, as in --set ring.buffer_bytes=8MiB")


def overridden(document: Document, overrides: Sequence[str], way: Way = BY_OPTION) -> Document:
    if not overrides:
        return document
    document = document.layer()
    for text in overrides:
        document = _with_override(document, text, way)
    return document


def _with_override(document: Document, text: str, way: Way) -> Document:
    place = f"{way.name} {concealed(text)}"
    key, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"{place}: there is no value; {way.example}")
    key_path = _key_path(key.strip())
    if not all(key_path):
        raise ConfigError(f"{place}: there is no key before the = or beside a dot; {way.example}")
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
