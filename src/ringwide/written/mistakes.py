"""What a model refuses, as one sentence for a person: place, key, value, and what would be right."""

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from ringwide.membership.filenames import concealed
from ringwide.written.document import Document
from ringwide.written.keys import cure_for_unknown, model_at, without_branches
from ringwide.written.parsing import KeyPath, dotted

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
    """The first of the mistakes in full, and how many others there are."""
    by_key: dict[KeyPath, list[ErrorDetails]] = {}
    for mistake in mistakes:
        by_key.setdefault(_key_path(mistake, model), []).append(mistake)
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


def _key_path(mistake: ErrorDetails, model: type[BaseModel]) -> KeyPath:
    key_path = without_branches(mistake["loc"], model)
    # A list that is too short has no line for what it lacks.
    return key_path[:-1] if mistake["type"] == "missing" and isinstance(key_path[-1], int) else key_path


def _problems(mistakes: list[ErrorDetails]) -> str:
    """Several mistakes of one key are the types that it may have, none of which fits."""
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
