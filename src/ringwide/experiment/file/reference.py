"""Every key of an experiment file as Markdown: a table for each block."""

from typing import Any

from pydantic import BaseModel, ByteSize
from pydantic.fields import FieldInfo

from ringwide.config.validation import block_of, blocks
from ringwide.config.yaml_text import written_size
from ringwide.experiment.config import ExperimentConfig

OUTERMOST = "The outermost keys"


def keys_reference() -> str:
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
