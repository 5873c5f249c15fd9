"""The keys that a model knows, by their paths: which there are, what each is for, which one was meant."""

import difflib
from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from ringwide.written.parsing import KeyPath, dotted


def blocks(model: type[BaseModel], above: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """Every block of keys and its name, the outermost, "", first. A list of blocks has [] in its name."""
    yield above, model
    for name, field in model.model_fields.items():
        if below := block_of(field):
            many = "[]" if get_origin(field.annotation) in (list, tuple) else ""
            yield from blocks(below, f"{above}.{name}{many}".removeprefix("."))


def block_of(field: FieldInfo) -> type[BaseModel] | None:
    """The model that a field is, or is a list of."""
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
    """The path up to the first key that the model does not know; none if it knows them all."""
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
    """The path as it is written. Where a key may be one of several types, pydantic adds which of them it tried."""
    for index, key in enumerate(key_path):
        field = model.model_fields.get(str(key))
        if field is not None and _is_choice(field.annotation):
            return key_path[: index + 1]
        model = (field and block_of(field)) or model
    return key_path


def cure_for_unknown(key_path: KeyPath, model: type[BaseModel]) -> str:
    """`key_path` ends with a key that is not known: which one was meant, or which there are."""
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
