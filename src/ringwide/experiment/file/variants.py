"""Every variant of an experiment: one, or one for each combination of the values in `sweep`."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from ringwide.config.document import Document, read_document
from ringwide.config.validation import checked, overridden
from ringwide.config.yaml_text import as_yaml
from ringwide.errors import ConfigError
from ringwide.experiment.config import ExperimentConfig
from ringwide.experiment.file.labels import described, labels, slugs
from ringwide.experiment.file.sweep import Choice, read_sweep

MOST_VARIANTS = 1000


@dataclass(frozen=True, slots=True)
class Variant:
    """One run of an experiment.

    `document` is what was written, with the changes of this variant. It is not the whole configuration: defaults are
    left out, because keys that belong to another model are refused even with their default.
    """

    label: str  # "" without a sweep
    slug: str  # the label as the name of a directory, numbered
    changes: dict[str, Any]  # keys as in the sweep
    document: dict[str, Any]
    config: ExperimentConfig
    source: Path  # the experiment file, beside which a user's own modules are


def load_variants(path: Path, overrides: Sequence[str] = ()) -> list[Variant]:
    """The grid in the order written, the last key changing fastest. All of it is checked before any of it can run."""
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


def _changed(document: Document, choices: Sequence[Choice]) -> Document:
    for choice in choices:
        for path, value in choice.leaves.items():
            place = choice.places[path]
            document = document.with_change(path, value, {path: place}, f"{place}: {described(choice)}")
    return document


def _variant(document: Document, choices: Sequence[Choice], label: str, slug: str) -> Variant:
    changes = {choice.key: choice.value for choice in choices}
    return Variant(label, slug, changes, document.data, checked(document, ExperimentConfig), document.path)


def write_document(path: Path, document: dict[str, Any]) -> None:
    """As YAML that loads to the same configuration."""
    path.write_text(as_yaml(document), encoding="utf-8")
