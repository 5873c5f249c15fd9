"""YAML text as plain data with the line of each key, and plain data as YAML text."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import yaml

from ringwide.errors import ConfigError

KeyPath = tuple[str | int, ...]

MAX_DEPTH = 20
PLAIN_TAGS = {"tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"}


def parse(text: str, place: Callable[[int], str], root: KeyPath = ()) -> tuple[Any, dict[KeyPath, str]]:
    """Plain data of a text, and the place of every key path in it. Paths begin with `root`."""
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
    """Refuse aliases, which could expand a small file endlessly, and depth that could exhaust the stack."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        line = event.start_mark.line + 1 if event.start_mark else 1
        if isinstance(event, yaml.AliasEvent):
            raise ConfigError(f"{place(line)}: *{event.anchor}: aliases are not supported; write the value out")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise ConfigError(f"{place(line)}: more than {MAX_DEPTH} levels; no key is that deep")


# -- writing

UNITS = {"GiB": 1024**3, "MiB": 1024**2, "KiB": 1024}


def as_yaml(document: dict[str, Any]) -> str:
    """YAML as a person would write it, which can be read again."""
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


def written_size(size: int) -> str | int:
    """Size in its largest exact unit: 4MiB, 1536KiB, 4097."""
    for unit, bytes_in_unit in UNITS.items():
        if size and size % bytes_in_unit == 0:
            return f"{size // bytes_in_unit}{unit}"
    return int(size)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        """Write every value out: an alias would be refused when the text is read."""
        return True

    def represent_sequence(
        self, tag: str, sequence: Iterable[Any], flow_style: bool | None = None
    ) -> yaml.nodes.SequenceNode:
        """Numbers and strings on one line, blocks below each other."""
        items = list(sequence)
        return super().represent_sequence(tag, items, flow_style=not any(isinstance(item, dict) for item in items))

    def represent_path(self, path: Path) -> yaml.nodes.ScalarNode:
        return self.represent_str(str(path))


_Dumper.add_multi_representer(Path, _Dumper.represent_path)
