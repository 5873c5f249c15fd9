"""What a node tells its launcher: one JSON object a line on its standard output."""

import json
from dataclasses import asdict
from typing import Any

from ringwide.training.progress import Result, Step

Message = Step | Result
KINDS: dict[str, type[Step] | type[Result]] = {"step": Step, "result": Result}


def encode(message: Message) -> str:
    kind = "step" if isinstance(message, Step) else "result"
    return json.dumps({"kind": kind, **asdict(message)})


def decode(line: str) -> Message | None:
    """None for anything else: libraries print to standard output whatever they like."""
    try:
        fields: Any = json.loads(line)
        return KINDS[fields.pop("kind")](**fields)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
