"""What settings say of themselves, where they are declared: must ranks agree on them, and do results depend on them?

A setting says it as `json_schema_extra`, so it stands in the JSON Schema too.
"""

from pydantic import BaseModel, ByteSize, JsonValue
from pydantic.fields import FieldInfo

Said = dict[str, JsonValue]
EQUAL: Said = {"equal_on_all_ranks": True}
"""Ranks that meet compare what follows from it, and refuse each other if that differs."""
DECIDES_BITS: Said = {"decides_bits": True}
"""Results depend on it, to the last bit: a run that goes on from a checkpoint must have the same."""


def fields_that(model: type[BaseModel], say: Said) -> tuple[str, ...]:
    return tuple(name for name, field in model.model_fields.items() if _says(field, say))


def _says(field: FieldInfo, what: Said) -> bool:
    extra = field.json_schema_extra
    return isinstance(extra, dict) and what.items() <= extra.items()


def settings_table(model: type[BaseModel]) -> str:
    """Every setting as a row of Markdown."""
    rows = [
        f"| `{name}` | `{_as_written(field.default)}` | {_of_ranks(field)} | {field.description} |"
        for name, field in model.model_fields.items()
    ]
    return "\n".join(["| setting | default | | |", "| --- | --- | --- | --- |", *rows])


def _of_ranks(field: FieldInfo) -> str:
    words = {"equal": EQUAL, "bits": DECIDES_BITS}
    return ", ".join(word for word, what in words.items() if _says(field, what))


def _as_written(default: object) -> str:
    if isinstance(default, ByteSize):
        return default.human_readable(separator=" ") if default else "0"
    return "none" if default in (None, "") else str(default).lower() if isinstance(default, bool) else str(default)
