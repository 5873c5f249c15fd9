"""Validation of documents by pydantic models: overrides are applied, and a mistake becomes one sentence."""

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

from pydantic import (
    BaseModel,
    ByteSize,
    ConfigDict,
    JsonValue,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from ringwide.bootstrap.protection import concealed
from ringwide.config.document import Document
from ringwide.config.yaml_text import KeyPath, dotted, parse
from ringwide.errors import ConfigError

Model = TypeVar("Model", bound=BaseModel)


class Settings(BaseModel):
    """Base of all blocks of settings: they do not change, and have no other keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @field_validator("*", mode="before")
    @classmethod
    def _take_no_truth_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse `epochs: yes`, which YAML reads as true, and pydantic then as 1."""
        field = cls.model_fields[info.field_name or ""]
        given = value if isinstance(value, list | tuple) else [value]
        if any(isinstance(each, bool) for each in given) and _takes_numbers_only(field.annotation):
            raise ValueError("should be a number, and not true or false (YAML reads yes, no, on and off as these)")
        return value


def _takes_numbers_only(annotation: Any) -> bool:
    kinds = list(_kinds(annotation))
    return bool not in kinds and any(kind in (int, float, ByteSize) or type(kind) is int for kind in kinds)


def _kinds(annotation: Any) -> Iterator[Any]:
    yield annotation
    for argument in get_args(annotation):
        yield from _kinds(argument)


Mark = dict[str, JsonValue]
EQUAL: Mark = {"equal_on_all_ranks": True}
"""Mark of settings that ranks compare when the ring forms; they refuse each other if these differ."""
DECIDES_BITS: Mark = {"decides_bits": True}
"""Mark of settings that decide results to the last bit: a resumed run must have the same."""


def fields_with(model: type[BaseModel], mark: Mark) -> tuple[str, ...]:
    """Names of the fields with this mark."""
    return tuple(name for name, field in model.model_fields.items() if _has(field, mark))


def _has(field: FieldInfo, mark: Mark) -> bool:
    extra = field.json_schema_extra
    return isinstance(extra, dict) and mark.items() <= extra.items()


def settings_table(model: type[BaseModel]) -> str:
    """Table of all settings in Markdown."""
    rows = [
        f"| `{name}` | `{_as_written(field.default)}` | {_marks_of(field)} | {field.description} |"
        for name, field in model.model_fields.items()
    ]
    return "\n".join(["| setting | default | | |", "| --- | --- | --- | --- |", *rows])


def _marks_of(field: FieldInfo) -> str:
    marks = {"equal": EQUAL, "bits": DECIDES_BITS}
    return ", ".join(name for name, mark in marks.items() if _has(field, mark))


def _as_written(default: object) -> str:
    if isinstance(default, ByteSize):
        return default.human_readable(separator=" ") if default else "0"
    return "none" if default in (None, "") else str(default).lower() if isinstance(default, bool) else str(default)


# -- overrides and validation


@dataclass(frozen=True, slots=True)
class OverrideSource:
    """Way to change a key without editing the file."""

    name: str
    example: str


BY_OPTION = OverrideSource("--set", "write --set KEY=VALUE, as in --set ring.buffer_bytes=8MiB")


def overridden(document: Document, overrides: Sequence[str], source: OverrideSource = BY_OPTION) -> Document:
    if not overrides:
        return document
    document = document.layer()
    for text in overrides:
        document = _with_override(document, text, source)
    return document


def _with_override(document: Document, text: str, source: OverrideSource) -> Document:
    place = f"{source.name} {concealed(text)}"
    key, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"{place}: there is no value; {source.example}")
    key_path = _key_path(key.strip())
    if not all(key_path):
        raise ConfigError(f"{place}: there is no key before the = or next to a dot; {source.example}")
    data, places = parse(value, lambda _: place, key_path)
    return document.with_change(key_path, data, places, place)


def _key_path(key: str) -> KeyPath:
    """Path of a dotted key. Keys of a sweep contain dots: `sweep.ring.codec` is the key `ring.codec` of `sweep`."""
    block, dot, rest = key.partition(".")
    return (block, rest) if dot and block == "sweep" else tuple(key.split("."))


def checked(document: Document, model: type[Model]) -> Model:
    """Validate a document. A `ConfigError` names the place of the first mistake."""
    try:
        return model.model_validate(document.data)
    except ValidationError as error:
        mistakes = error.errors(include_url=False)
        raise ConfigError(sentence(mistakes, _blamed(document, model, mistakes[0]), model)) from error


def _blamed(document: Document, model: type[Model], mistake: ErrorDetails) -> Document:
    """Document to blame: a mistake that exists without some of the changes is not caused by them."""
    for simpler in document.simpler():
        if mistake["msg"] in _mistakes_at(mistake["loc"], simpler, model):
            return _blamed(simpler, model, mistake)
    return document


def _mistakes_at(key_path: KeyPath, document: Document, model: type[Model]) -> set[str]:
    try:
        model.model_validate(document.data)
    except ValidationError as error:
        return {mistake["msg"] for mistake in error.errors(include_url=False) if mistake["loc"] == key_path}
    return set()


def checked_value(value: object, kind: TypeAdapter[Any], expected: str) -> object:
    try:
        return kind.validate_python(value)
    except ValidationError:
        raise ValueError(f"should be {expected}") from None


# -- keys of a model


def blocks(model: type[BaseModel], above: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """Every block of keys with its name. The outermost, "", is first; a list of blocks has [] in its name."""
    yield above, model
    for name, field in model.model_fields.items():
        if below := block_of(field):
            many = "[]" if get_origin(field.annotation) in (list, tuple) else ""
            yield from blocks(below, f"{above}.{name}{many}".removeprefix("."))


def block_of(field: FieldInfo) -> type[BaseModel] | None:
    """Model of a field that is a block or a list of blocks."""
    for candidate in (field.annotation, *get_args(field.annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


def model_at(key_path: KeyPath, model: type[BaseModel]) -> type[BaseModel]:
    for key in key_path:
        field = model.model_fields.get(str(key))
        model = (field and block_of(field)) or model
    return model


def unknown_part(key_path: KeyPath, model: type[BaseModel]) -> KeyPath | None:
    """Path up to the first key that the model does not know; None if it knows them all."""
    for index, key in enumerate(key_path):
        field = model.model_fields.get(str(key))
        if field is None:
            return key_path[: index + 1]
        below = block_of(field)
        if below is None:
            free = get_origin(field.annotation) is dict
            return None if free or index + 1 == len(key_path) else key_path[: index + 2]
        model = below
    return None


def without_branches(key_path: KeyPath, model: type[BaseModel]) -> KeyPath:
    """Path as written. Where a key may have several types, pydantic appends the one it tried."""
    for index, key in enumerate(key_path):
        field = model.model_fields.get(str(key))
        if field is not None and _is_choice(field.annotation):
            return key_path[: index + 1]
        model = (field and block_of(field)) or model
    return key_path


def cure_for_unknown(key_path: KeyPath, model: type[BaseModel]) -> str:
    """Advice for a path that ends with an unknown key: the one that was probably meant, or all there are."""
    above, name = key_path[:-1], str(key_path[-1])
    around = model_at(above, model)
    if above and str(above[-1]) in around.model_fields:
        return f"{dotted(above)} has no keys below it"
    if elsewhere := [f"{block}.{name}" for block, keys in blocks(model) if block and name in keys.model_fields]:
        return f"did you mean {elsewhere[0]}?"
    if close := difflib.get_close_matches(name, around.model_fields, n=1):
        return f"did you mean {dotted((*above, close[0]))}?"
    return f"the keys here are {', '.join(around.model_fields)}"


def _is_choice(annotation: Any) -> bool:
    types = [kind for kind in get_args(annotation) if kind is not NoneType]
    return get_origin(annotation) in (Union, UnionType) and len(types) > 1


# -- error texts: place, key, value, and what would be right

LONGEST_VALUE = 80
SIZE_EXAMPLE = "write a number of bytes or one with a unit, such as 1MiB, 512KiB or 4MB"
BLOCK_EXPECTED = "should be keys with values, indented below this one"
NAME_EXPECTED = "should be letters, digits, spaces and any of _ . , = -, and begin with a letter or a digit"
EXPECTED = {
    "model_type": BLOCK_EXPECTED,
    "model_attributes_type": BLOCK_EXPECTED,
    "dict_type": BLOCK_EXPECTED,
    "tuple_type": "should be a list, as in [1, 2]",
    "list_type": "should be a list, as in [1, 2]",
    "bool_type": "should be true or false",
    "bool_parsing": "should be true or false",
    "string_type": "should be text; quote it if it is",
    "string_pattern_mismatch": NAME_EXPECTED,
}


def sentence(mistakes: Sequence[ErrorDetails], document: Document, model: type[BaseModel]) -> str:
    """First mistake in full, and the number of others."""
    by_key: dict[KeyPath, list[ErrorDetails]] = {}
    for mistake in mistakes:
        by_key.setdefault(_path_of(mistake, model), []).append(mistake)
    key_path, first = next(iter(by_key.items()))
    more = f" (and {len(by_key) - 1} more like this)" if len(by_key) > 1 else ""
    return _about(key_path, first, document, model) + more


def _about(key_path: KeyPath, mistakes: list[ErrorDetails], document: Document, model: type[BaseModel]) -> str:
    mistake = mistakes[0]
    place = document.place(key_path)
    subject = f"{dotted(key_path)}: " if key_path else ""
    match mistake["type"]:
        case "extra_forbidden":
            return f"{place}: {subject}unknown key; {cure_for_unknown(key_path, model)}"
        case "missing" if not isinstance(mistake["loc"][-1], int):
            return f"{place}: {subject}this key is missing; {_description(key_path, model)}"
        case "value_error" if isinstance(mistake["input"], dict):
            return f"{document.place_of_block(key_path)}: {subject}{_problem(mistake)}"
        case _:
            return f"{place}: {subject}{_shown(mistake['input'])}: {_problems(mistakes)}"


def _path_of(mistake: ErrorDetails, model: type[BaseModel]) -> KeyPath:
    key_path = without_branches(mistake["loc"], model)
    # A missing entry of a list has no line of its own.
    return key_path[:-1] if mistake["type"] == "missing" and isinstance(key_path[-1], int) else key_path


def _problems(mistakes: list[ErrorDetails]) -> str:
    """Problems of one key: there is one for each type it may have."""
    return " or ".join(dict.fromkeys(_problem(mistake) for mistake in mistakes)).replace(" or should be ", " or ")


def _problem(mistake: ErrorDetails) -> str:
    kind, context = mistake["type"], mistake.get("ctx", {})
    text = mistake["msg"].removeprefix("Value error, ").replace("Input should be", "should be", 1)
    match kind:
        case "byte_size" | "byte_size_unit":
            return f"{text}; {SIZE_EXAMPLE}"
        case "too_long":
            return f"has {context['actual_length']} entries, and may have {context['max_length']}"
        case "too_short":
            return f"has {context['actual_length']} of at least {context['min_length']} entries"
        case "missing":
            return f"entry {int(mistake['loc'][-1]) + 1} is missing"
    return EXPECTED.get(kind, text)


def _shown(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = concealed(repr(list(value) if isinstance(value, tuple) else value))
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}..."


def _description(key_path: KeyPath, model: type[BaseModel]) -> str:
    name = key_path[-1]
    about = model_at(key_path[:-1], model).model_fields[str(name)].description
    return f"write '{name}: ...'" + (f" ({about.rstrip('.')})" if about else "")
