"""What a node tells its launcher: one JSON object a line on its standard output.

Ten nodes make thousands of steps a second, so many steps are one message, and each of their fields one column.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

from ringwide.training.progress import Evaluation, Plan, Progress, Result, Step

Message = Plan | Progress | Evaluation | Result
KINDS: dict[str, type[Message]] = {"plan": Plan, "progress": Progress, "evaluation": Evaluation, "result": Result}
NAME_OF = {kind: name for name, kind in KINDS.items()}
STEP_FIELDS = tuple(field.name for field in fields(Step))


def encode(message: Message) -> str:
    told = {"kind": NAME_OF[type(message)], **_told(message)}
    return json.dumps(told, separators=(",", ":"))


def decode(line: str) -> Message | None:
    """None for anything else: libraries print to standard output whatever they like."""
    try:
        told: Any = json.loads(line)
        kind = KINDS[told.pop("kind")]
        if kind is Progress:
            told["steps"] = _steps(told["steps"])
        return kind(**told)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _told(message: Message) -> dict[str, Any]:
    if not isinstance(message, Progress):
        return asdict(message)
    sums = {"bytes_sent": message.bytes_sent, "bytes_received": message.bytes_received}
    return {**sums, "steps": {name: _column(message.steps, name) for name in STEP_FIELDS}}


def _column(steps: Sequence[Step], name: str) -> list[int | float]:
    return [_short(getattr(step, name)) for step in steps]


def _short(number: int | float) -> int | float:
    """Seven digits are about what a float32 holds; ten more would only make the line longer."""
    return number if isinstance(number, int) else float(f"{number:.7g}")


def _steps(columns: dict[str, list[Any]]) -> tuple[Step, ...]:
    if set(columns) != set(STEP_FIELDS):
        raise ValueError("not the fields of a step")
    return tuple(Step(*row) for row in zip(*(columns[name] for name in STEP_FIELDS), strict=True))
