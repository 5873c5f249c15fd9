"""What `sweep` says: keys, each with the values to try. Checked by itself, before anything is made of it."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NoReturn

from ringwide.bootstrap.key_file import concealed
from ringwide.config.document import Document, is_below
from ringwide.config.validation import cure_for_unknown, unknown_part
from ringwide.config.yaml_text import KeyPath, dotted
from ringwide.errors import ConfigError
from ringwide.experiment.config import ExperimentConfig

EXAMPLE = "as in 'ring.codec: [none, lz4]'"
REFUSED: dict[KeyPath, str] = {
    ("sweep",): "a sweep cannot hold another; put the keys side by side, and every combination is run",
    ("name",): "all variants have one name, and each a label of its own",
    ("report",): "there is one report, which compares all variants",
    ("checkpoint", "directory"): "variants would replace each other's checkpoints; without it each keeps its own",
}


@dataclass(frozen=True, slots=True)
class Choice:
    """One value of one key of the sweep. `leaves` are the keys it sets: one, or those of a block."""

    key: str
    value: Any
    leaves: dict[KeyPath, Any]
    places: dict[KeyPath, str]  # where each leaf was written


def read_sweep(document: Document) -> list[list[Choice]]:
    """For every key, in the order written, its choices."""
    sweep = document.data.get("sweep", {})
    if not isinstance(sweep, dict):
        raise ConfigError(f"{document.place(('sweep',))}: sweep: should be keys, each with a list of values, {EXAMPLE}")
    axes = [_choices(document, key, values) for key, values in sweep.items()]
    if axes:
        _check_base(document, axes)
    for one, other in combinations(axes, 2):
        if both := sorted(_leaves(one) & _leaves(other)):
            _fail(document, other[0].key, f"sets {dotted(both[0])}, and so does {one[0].key}; leave one of them out")
    return axes


def _choices(document: Document, key: str, values: Any) -> list[Choice]:
    key_path = tuple(key.split("."))
    _check_key(document, key, key_path)
    if not isinstance(values, list):
        _fail(document, key, f"{values!r}: should be a list of values, {EXAMPLE}; keys are written with dots")
    if not values:
        _fail(document, key, "the list is empty, so nothing would run; give it values, or remove the key")
    seen = [repr(value) for value in values]
    for index, text in enumerate(seen):
        if text in seen[:index]:
            _fail(document, key, f"{text} is given twice; to run the same again, sweep training.seed", index)
    return [_choice(document, key, key_path, index, value) for index, value in enumerate(values)]


def _check_key(document: Document, key: str, key_path: KeyPath) -> None:
    _check_allowed(document, key, key_path)
    if unknown := unknown_part(key_path, ExperimentConfig):
        _fail(document, key, f"unknown key; {cure_for_unknown(unknown, ExperimentConfig)}")


def _check_allowed(document: Document, key: str, key_path: KeyPath, *below: str | int) -> None:
    for refused, reason in REFUSED.items():
        if is_below(key_path, refused):
            _fail(document, key, f"{dotted(key_path)} cannot be swept: {reason}", *below)


def _check_base(document: Document, axes: list[list[Choice]]) -> None:
    """What is said outside the sweep must not be undone by it, nor by one variant to the next."""
    directory: KeyPath = ("checkpoint", "directory")
    checkpoint = document.data.get("checkpoint")
    if isinstance(checkpoint, dict) and checkpoint.get("directory") is not None:
        raise ConfigError(f"{document.place(directory)}: {dotted(directory)}: {REFUSED[directory]}; remove it")
    for axis in axes:
        for key_path, change in document.changed.items():
            if any(is_below(key_path, leaf) for leaf in _leaves(axis)):
                raise ConfigError(
                    f"{change}: the sweep sets {dotted(key_path)}; change that, as in --set sweep.{axis[0].key}=[...]"
                )


def _choice(document: Document, key: str, key_path: KeyPath, index: int, value: Any) -> Choice:
    leaves, places = {}, {}
    for below, leaf in _flat(value):
        leaf_path = (*key_path, *below)
        _check_allowed(document, key, leaf_path, index, *below)
        leaves[leaf_path] = leaf
        places[leaf_path] = f"{document.place(('sweep', key, index, *below))}: sweep"
    return Choice(key, value, leaves, places)


def _flat(value: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    if not isinstance(value, dict):
        yield (), value
        return
    for name, below in value.items():
        yield from (((name, *path), leaf) for path, leaf in _flat(below))


def _leaves(axis: list[Choice]) -> set[KeyPath]:
    return {leaf for choice in axis for leaf in choice.leaves}


def _fail(document: Document, key: str, problem: str, *below: str | int) -> NoReturn:
    raise ConfigError(f"{document.place(('sweep', key, *below))}: sweep.{key}: {concealed(problem)}")
