"""Short names for the variants of a sweep, no two the same: for people, and for directories."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from ringwide.config.yaml_text import KeyPath, dotted
from ringwide.experiment.file.sweep import Choice

LONGEST_SLUG = 80


def labels(variants: Sequence[Sequence[Choice]]) -> list[str]:
    """As in "codec=lz4, lanes=2": each key by its last word, unless two keys share it."""
    paths = {path for choices in variants for choice in choices for path in choice.leaves}
    ends = Counter(path[-1] for path in paths)
    names = {path: str(path[-1]) if ends[path[-1]] == 1 else dotted(path) for path in paths}
    texts = [", ".join(_described(choice, names) for choice in choices) for choices in variants]
    often = Counter(texts)
    return [text if often[text] == 1 else f"{text} ({number})" for number, text in enumerate(texts, start=1)]


def slugs(labels: Sequence[str]) -> list[str]:
    """As in "01-codec=lz4": they sort in the order in which they run."""
    digits = max(2, len(str(len(labels))))
    return [f"{number:0{digits}}-{_plain(label)}" for number, label in enumerate(labels, start=1)]


def described(choice: Choice) -> str:
    return _described(choice, {path: dotted(path) for path in choice.leaves})


def _described(choice: Choice, names: dict[KeyPath, str]) -> str:
    texts = [f"{names[path]}={_shown(value)}" for path, value in choice.leaves.items()]
    return ", ".join(texts) or f"{choice.key} as it is"


def _shown(value: Any) -> str:
    match value:
        case None | True | False:
            return {None: "null", True: "true", False: "false"}[value]
        case list():
            return f"[{','.join(map(_shown, value))}]"
    return str(value)


def _plain(label: str) -> str:
    return re.sub(r"[^A-Za-z0-9._=,-]+", "-", label.replace(", ", ",")).strip("-.")[:LONGEST_SLUG]
