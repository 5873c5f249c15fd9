"""Messages of a node to its launcher: one JSON object a line on its standard output.

Ten nodes make thousands of steps a second, so one message holds many steps, with one column for each field.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from operator import attrgetter
from typing import Any

from ringwide.training.progress import Evaluation, Progress, Result, TrainingPlan, TrainingStep

Message = TrainingPlan | Progress | Evaluation | Result
KINDS: dict[str, type[Message]] = {
    "plan": TrainingPlan,
    "progress": Progress,
    "evaluation": Evaluation,
    "result": Result,
}
NAME_OF = {kind: name for name, kind in KINDS.items()}
STEP_FIELDS = tuple(field.name for field in fields(TrainingStep))
WHOLE_FIELDS = {field.name for field in fields(TrainingStep) if field.type is int}
OPTIONAL_FIELDS = {field.name for field in fields(TrainingStep) if field.default is None}


def encode(message: Message) -> str:
    if isinstance(message, Progress):
        return _encode_progress(message)
    return json.dumps({"kind": NAME_OF[type(message)], **asdict(message)})


def decode(line: str) -> Message | None:
    """Message of the line, or None: libraries may print anything to standard output."""
    try:
        told: Any = json.loads(line)
        kind = KINDS[told.pop("kind")]
        if kind is Progress:
            told["steps"] = _steps(told["steps"])
        return kind(**told)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _encode_progress(progress: Progress) -> str:
    """Formatted by hand: `json` would take five times as long, and this runs for every step."""
    names = [name for name in STEP_FIELDS if name not in OPTIONAL_FIELDS or _are_known(progress.steps, name)]
    columns = ",".join(f'"{name}":[{_column(progress.steps, name)}]' for name in names)
    sums = f'"bytes_sent":{progress.bytes_sent},"bytes_received":{progress.bytes_received}'
    return f'{{"kind":"progress",{sums},"steps":{{{columns}}}}}'


def _are_known(steps: Sequence[TrainingStep], name: str) -> bool:
    """Whether an optional field has numbers: it has one in every step of a run, or in none."""
    return bool(steps) and getattr(steps[0], name) is not None


def _column(steps: Sequence[TrainingStep], name: str) -> str:
    numbers = map(attrgetter(name), steps)
    if name in WHOLE_FIELDS:
        return ",".join(map(str, numbers))
    # Seven digits are about what a float32 holds; ten more would only make the line longer.
    return as_json(",".join([f"{number:.7g}" for number in numbers]))


def as_json(numbers: str) -> str:
    """Formatted floats in the spelling of `json`, which differs for NaN and infinity."""
    if "n" not in numbers:
        return numbers
    return numbers.replace("nan", "NaN").replace("inf", "Infinity")


def _steps(columns: dict[str, list[Any]]) -> tuple[TrainingStep, ...]:
    if not set(STEP_FIELDS) - OPTIONAL_FIELDS <= set(columns) <= set(STEP_FIELDS):
        raise ValueError("not the fields of a step")
    names = [name for name in STEP_FIELDS if name in columns]  # optional ones are the last
    return tuple(TrainingStep(*row) for row in zip(*(columns[name] for name in names), strict=True))
