"""Sweep of an experiment: one variant for each combination of its values, or a single one without a sweep."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from math import prod
from pathlib import Path
from typing import Any, NoReturn

from ringwide.bootstrap.protection import concealed
from ringwide.config.document import Document, is_below, read_document
from ringwide.config.validation import checked, cure_for_unknown, overridden, unknown_part
from ringwide.config.yaml_text import KeyPath, as_yaml, dotted
from ringwide.errors import ConfigError
from ringwide.experiment.config import ExperimentConfig

EXAMPLE = "as in 'ring.codec: [none, lz4]'"
REFUSED: dict[KeyPath, str] = {
    ("sweep",): "a sweep cannot hold another; put the keys side by side, and every combination is run",
    ("name",): "all variants have one name, and each a label of its own",
    ("report",): "there is one report, which compares all variants",
    ("checkpoint", "directory"): "variants would replace each other's checkpoints; without it each keeps its own",
}
MOST_VARIANTS = 1000


@dataclass(frozen=True, slots=True)
class SweepChoice:
    """One value of one key of the sweep. `leaves` are the keys it sets: one, or those of a block."""

    key: str
    value: Any
    leaves: dict[KeyPath, Any]
    places: dict[KeyPath, str]  # where each leaf was written


@dataclass(frozen=True, slots=True)
class Variant:
    """One run of an experiment.

    `document` is the data of the file with the changes of this variant. Defaults are left out, because keys that
    belong to another model are refused even with their default.
    """

    label: str  # "" without a sweep
    slug: str  # the label as the name of a directory, numbered
    changes: dict[str, Any]  # keys as in the sweep
    document: dict[str, Any]
    config: ExperimentConfig
    source: Path  # the experiment file; the user's modules are next to it


def load_variants(path: Path, overrides: Sequence[str] = ()) -> list[Variant]:
    """Variants in the order written, the last key changing fastest. All are checked before any can run."""
    document = overridden(read_document(path), overrides)
    axes = read_sweep(document)
    if not axes:
        return [_variant(document.without("sweep"), (), "", "")]
    if (count := prod(len(axis) for axis in axes)) > MOST_VARIANTS:
        place = document.place(("sweep",))
        raise ConfigError(f"{place}: sweep: these are {count:,} variants; at most {MOST_VARIANTS:,} can be run")
    grid = list(product(*axes))
    names = labels(grid)
    return [
        _variant(_changed(document.without("sweep"), choices), choices, label, slug)
        for choices, label, slug in zip(grid, names, slugs(names), strict=True)
    ]


def _changed(document: Document, choices: Sequence[SweepChoice]) -> Document:
    for choice in choices:
        for path, value in choice.leaves.items():
            place = choice.places[path]
            document = document.with_change(path, value, {path: place}, f"{place}: {described(choice)}")
    return document


def _variant(document: Document, choices: Sequence[SweepChoice], label: str, slug: str) -> Variant:
    changes = {choice.key: choice.value for choice in choices}
    return Variant(label, slug, changes, document.data, checked(document, ExperimentConfig), document.path)


def write_document(path: Path, document: dict[str, Any]) -> None:
    """Write YAML that loads to the same configuration."""
    path.write_text(as_yaml(document), encoding="utf-8")


# -- reading


def read_sweep(document: Document) -> list[list[SweepChoice]]:
    """Choices for every key, in the order written."""
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


def _choices(document: Document, key: str, values: Any) -> list[SweepChoice]:
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


def _check_base(document: Document, axes: list[list[SweepChoice]]) -> None:
    """Refuse settings outside the sweep that it would override, or with which variants would overwrite each other."""
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


def _choice(document: Document, key: str, key_path: KeyPath, index: int, value: Any) -> SweepChoice:
    leaves, places = {}, {}
    for below, leaf in _flat(value):
        leaf_path = (*key_path, *below)
        _check_allowed(document, key, leaf_path, index, *below)
        leaves[leaf_path] = leaf
        places[leaf_path] = f"{document.place(('sweep', key, index, *below))}: sweep"
    return SweepChoice(key, value, leaves, places)


def _flat(value: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    if not isinstance(value, dict):
        yield (), value
        return
    for name, below in value.items():
        yield from (((name, *path), leaf) for path, leaf in _flat(below))


def _leaves(axis: list[SweepChoice]) -> set[KeyPath]:
    return {leaf for choice in axis for leaf in choice.leaves}


def _fail(document: Document, key: str, problem: str, *below: str | int) -> NoReturn:
    raise ConfigError(f"{document.place(('sweep', key, *below))}: sweep.{key}: {concealed(problem)}")


# -- names of variants: labels for people, slugs for directories

LONGEST_SLUG = 80


def labels(variants: Sequence[Sequence[SweepChoice]]) -> list[str]:
    """Unique labels such as "codec=lz4, lanes=2": each key by its last part, unless two keys share it."""
    paths = {path for choices in variants for choice in choices for path in choice.leaves}
    ends = Counter(path[-1] for path in paths)
    names = {path: str(path[-1]) if ends[path[-1]] == 1 else dotted(path) for path in paths}
    texts = [", ".join(_described(choice, names) for choice in choices) for choices in variants]
    often = Counter(texts)
    return [text if often[text] == 1 else f"{text} ({number})" for number, text in enumerate(texts, start=1)]


def slugs(labels: Sequence[str]) -> list[str]:
    """Unique directory names such as "01-codec=lz4", which sort in the order of the runs."""
    digits = max(2, len(str(len(labels))))
    return [f"{number:0{digits}}-{_plain(label)}" for number, label in enumerate(labels, start=1)]


def described(choice: SweepChoice) -> str:
    return _described(choice, {path: dotted(path) for path in choice.leaves})


def _described(choice: SweepChoice, names: dict[KeyPath, str]) -> str:
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
