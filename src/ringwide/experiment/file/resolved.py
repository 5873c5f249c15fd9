"""A configuration with everything that was left to its default written out. It loads to the same configuration."""

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ByteSize, ValidationError

from ringwide.config.yaml_text import written_size
from ringwide.experiment.file.variants import Variant


def resolved(variants: Sequence[Variant]) -> dict[str, Any]:
    """What all variants have in common, and the sweep that they come from."""
    common, *others = [_written_out(variant.config) for variant in variants]
    for other in others:
        common = _in_both(common, other)
    sweep = {key: _values(key, variants) for key in variants[0].changes}
    return {key: value for key, value in common.items() if key != "sweep"} | ({"sweep": sweep} if sweep else {})


def _written_out(block: BaseModel) -> dict[str, Any]:
    """Keys that were not written and would be refused beside the others, such as those of other models, stay out."""
    shown = {name: _plain(getattr(block, name)) for name in block.model_fields_set}
    for name in type(block).model_fields:
        with_default = shown | {name: _plain(getattr(block, name))}
        if name not in shown and _is_valid(type(block), with_default):
            shown = with_default
    return {name: shown[name] for name in type(block).model_fields if name in shown}


def _plain(value: Any) -> Any:
    match value:
        case BaseModel():
            return _written_out(value)
        case ByteSize():
            return written_size(value)
        case tuple():
            return [_plain(item) for item in value]
    return value


def _is_valid(model: type[BaseModel], data: dict[str, Any]) -> bool:
    try:
        model.model_validate(data)
    except ValidationError:
        return False
    return True


def _in_both(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    both: dict[str, Any] = {}
    for key in one.keys() & other.keys():
        if isinstance(one[key], dict) and isinstance(other[key], dict):
            both[key] = _in_both(one[key], other[key])
        elif one[key] == other[key]:
            both[key] = one[key]
    return {key: both[key] for key in one if key in both}


def _values(key: str, variants: Sequence[Variant]) -> list[Any]:
    return list({repr(variant.changes[key]): variant.changes[key] for variant in variants}.values())
