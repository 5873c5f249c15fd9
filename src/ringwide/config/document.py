"""Document of settings: the contents of a file with the place of each key, and the changes made to it since."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from ringwide.config.yaml_text import KeyPath, dotted, parse
from ringwide.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Document:
    """Plain data, and the place where each key was written. After changes, `before` is the document without them."""

    path: Path
    data: dict[str, Any]
    places: dict[KeyPath, str]
    changed: dict[KeyPath, str] = field(default_factory=dict)
    before: Self | None = None

    def place(self, key_path: KeyPath) -> str:
        """Place of the key, or of the nearest block around it that was written."""
        while key_path and key_path not in self.places:
            key_path = key_path[:-1]
        return self.places.get(key_path, f"{self.path}:1")

    def place_of_block(self, block: KeyPath) -> str:
        """Place to name when the keys of a block do not fit together: that of changes in it, if there are any."""
        changes = [place for key_path, place in self.changed.items() if is_below(key_path, block)]
        return " and ".join(dict.fromkeys(changes)) or self.place(block)

    def layer(self) -> Self:
        """Copy to apply changes to."""
        return type(self)(self.path, self.data, self.places, {}, self)

    def without(self, key: str) -> Self:
        """Copy without a top-level key, to apply changes to."""
        data = {name: value for name, value in self.data.items() if name != key}
        return type(self)(self.path, data, self.places, {}, self)

    def with_change(self, key_path: KeyPath, value: Any, places: dict[KeyPath, str], change: str) -> Self:
        """Document with the value replaced. `places` are those of all keys in it; `change` describes it for errors."""
        kept = {path: place for path, place in self.places.items() if not is_below(path, key_path)}
        around = {key_path[:length]: places[key_path] for length in range(1, len(key_path))}
        data = _placed(self.data, key_path, value, places[key_path])
        changed = self.changed | {key_path: change}
        return type(self)(self.path, data, around | kept | places, changed, self.before)

    def simpler(self) -> Iterator[Self]:
        """Documents to check before these changes are blamed: without them, and with each of them alone."""
        if self.before is None:
            return
        yield self.before
        changes = list(dict.fromkeys(self.changed.values()))
        if len(changes) > 1:
            yield from (self._only(change) for change in changes)

    def _only(self, change: str) -> Self:
        document = (self.before or self).layer()
        for key_path in [path for path, text in self.changed.items() if text == change]:
            places = {path: place for path, place in self.places.items() if is_below(path, key_path)}
            document = document.with_change(key_path, _value_at(self.data, key_path), places, change)
        return document


@dataclass(frozen=True, slots=True)
class DocumentKind:
    """Kind of a file, for error texts."""

    name: str
    example: str
    named_by: str = ""  # "VARIABLE: " if a variable names the file


AN_EXPERIMENT = DocumentKind("the experiment", "nodes: 4")


def read_document(path: Path, kind: DocumentKind = AN_EXPERIMENT) -> Document:
    where = f"{kind.named_by}{path}"
    data, places = parse(_read(path, where, kind), lambda line: f"{where}:{line}")
    data = {} if data is None else data
    if not isinstance(data, dict):
        raise ConfigError(f"{where}:1: the file holds {_described(data)}; it should hold keys, as in '{kind.example}'")
    return Document(path, data, places)


def _read(path: Path, where: str, kind: DocumentKind) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{where}: {kind.name} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{where}: {kind.name} is not UTF-8 text") from error


def _placed(data: dict[str, Any], key_path: KeyPath, value: Any, place: str, above: KeyPath = ()) -> dict[str, Any]:
    """Copy of the data with the value at this path. Other branches are shared with the original."""
    first, rest = str(key_path[0]), key_path[1:]
    if not rest:
        return data | {first: value}
    here = (*above, first)
    block = {} if data.get(first) is None else data[first]
    if not isinstance(block, dict):
        raise ConfigError(f"{place}: {dotted(here)}: {block!r} has no keys below it; set {dotted(here)} itself")
    return data | {first: _placed(block, rest, value, place, here)}


def _value_at(data: Any, key_path: KeyPath) -> Any:
    for key in key_path:
        data = data[key]
    return data


def is_below(key_path: KeyPath, block: KeyPath) -> bool:
    return key_path[: len(block)] == block


def _described(data: object) -> str:
    return "a list" if isinstance(data, list) else f"only {data!r}"
