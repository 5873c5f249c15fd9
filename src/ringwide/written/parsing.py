"""YAML as plain data, and for every key the place where it was written.

The text is composed into nodes, which know their lines, and turned into plain data here. That way keys stay the text
that was written (YAML 1.1 reads `on` as True), a key given twice is seen, and no tag can ask for anything to be built.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

import yaml

from ringwide.errors import ConfigError

KeyPath = tuple[str | int, ...]

MAX_DEPTH = 20
PLAIN_TAGS = {"tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"}


def parse(text: str, place: Callable[[int], str], root: KeyPath = ()) -> tuple[Any, dict[KeyPath, str]]:
    """The plain data of a text, and the place of every key path in it, which begins with `root`."""
    reader = _Reader(place)
    node = _compose(text, place)
    data = None if node is None else reader.plain(node, root)
    return data, {root: place(1)} | {key_path: place(line) for key_path, line in reader.lines.items()}


def dotted(key_path: KeyPath) -> str:
    text = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in key_path)
    return text.removeprefix(".")


@dataclass(slots=True)
class _Reader:
    place: Callable[[int], str]
    lines: dict[KeyPath, int] = field(default_factory=dict)

    def plain(self, node: yaml.Node, key_path: KeyPath) -> Any:
        self.lines.setdefault(key_path, node.start_mark.line + 1)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, key_path)
        if node.tag not in PLAIN_TAGS:
            self._fail(node, key_path, f"the tag {node.tag} is not allowed; write plain values")
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, key_path)
        return [self.plain(item, (*key_path, index)) for index, item in enumerate(node.value)]

    def _mapping(self, node: yaml.MappingNode, key_path: KeyPath) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self._fail(key, key_path, "a key is one word")
            below = (*key_path, key.value)
            if key.value in mapping:
                self._fail(key, below, f"this key is on line {self.lines[below]} already; keep one of the two")
            self.lines[below] = key.start_mark.line + 1
            mapping[key.value] = self.plain(value, below)
        return mapping

    def _scalar(self, node: yaml.ScalarNode, key_path: KeyPath) -> Any:
        try:
            return yaml.SafeLoader("").construct_object(node)
        except yaml.YAMLError:
            self._fail(node, key_path, f"the tag {node.tag} is not allowed; write plain values")
        except ValueError as error:
            self._fail(node, key_path, f"{node.value!r} cannot be read: {error}; quote it if it is meant as text")

    def _fail(self, node: yaml.Node, key_path: KeyPath, problem: str) -> NoReturn:
        key = f"{dotted(key_path)}: " if key_path else ""
        raise ConfigError(f"{self.place(node.start_mark.line + 1)}: {key}{problem}")


def _compose(text: str, place: Callable[[int], str]) -> yaml.Node | None:
    try:
        _check_events(text, place)
        root: yaml.Node | None = yaml.compose(text, Loader=yaml.SafeLoader)
        return root
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"{place(line)}: not YAML: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{place(1)}: not YAML: {str(error).splitlines()[0]}") from error


def _check_events(text: str, place: Callable[[int], str]) -> None:
    """Aliases could make a small file endless, and depth could exhaust the stack: neither has a use here."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        line = event.start_mark.line + 1 if event.start_mark else 1
        if isinstance(event, yaml.AliasEvent):
            raise ConfigError(f"{place(line)}: *{event.anchor}: aliases are not understood; write the value out")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise ConfigError(f"{place(line)}: more than {MAX_DEPTH} levels; no key is that deep")
