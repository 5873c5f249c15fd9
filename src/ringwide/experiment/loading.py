"""A YAML file in, a checked model out; a mistake becomes one sentence with file, line, key, value and cure.

The text is composed into nodes, which know their lines, and turned into plain data here. That way keys stay the text
that was written (YAML 1.1 reads `on` as True), a key given twice is seen, and no tag can ask for anything to be built.
"""

import difflib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from ringwide.errors import ConfigError

Model = TypeVar("Model", bound=BaseModel)
KeyPath = tuple[str | int, ...]

MAX_DEPTH = 20
PLAIN_TAGS = {"tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"}
SIZE_EXAMPLE = "write a number of bytes or one with a unit, such as 1MiB, 512KiB or 4MB"


def load_model(path: Path, model: type[Model]) -> Model:
    document = read_document(path)
    try:
        return model.model_validate(document.data)
    except ValidationError as error:
        mistakes = error.errors(include_url=False)
        more = f" (and {len(mistakes) - 1} more like this)" if len(mistakes) > 1 else ""
        raise ConfigError(_sentence(mistakes[0], document, model) + more) from error


@dataclass(frozen=True, slots=True)
class Document:
    """Plain data, and for every key path the line on which it was written."""

    path: Path
    data: Any
    lines: dict[KeyPath, int]

    def place(self, key_path: KeyPath) -> str:
        """The line of the key, or of the nearest thing around it that is written at all."""
        while key_path and key_path not in self.lines:
            key_path = key_path[:-1]
        return f"{self.path}:{self.lines.get(key_path, 1)}"


def read_document(path: Path) -> Document:
    reader = _Reader(path)
    root = _compose(_read(path), path)
    data = {} if root is None else reader.plain(root, ())
    if not isinstance(data, dict):
        raise ConfigError(f"{path}:1: the file holds {_kind(data)}; it should hold keys, as in 'nodes: 4'")
    return Document(path, data, reader.lines)


@dataclass(slots=True)
class _Reader:
    path: Path
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
        key = f"{_dotted(key_path)}: " if key_path else ""
        raise ConfigError(f"{self.path}:{node.start_mark.line + 1}: {key}{problem}")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{path}: the experiment cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: the experiment is not UTF-8 text") from error


def _compose(text: str, path: Path) -> yaml.Node | None:
    try:
        _check_events(text, path)
        root: yaml.Node | None = yaml.compose(text, Loader=yaml.SafeLoader)
        return root
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"{path}:{line}: not YAML: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not YAML: {str(error).splitlines()[0]}") from error


def _check_events(text: str, path: Path) -> None:
    """Aliases could make a small file endless, and depth could exhaust the stack: neither has a use here."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        line = event.start_mark.line + 1 if event.start_mark else 1
        if isinstance(event, yaml.AliasEvent):
            raise ConfigError(f"{path}:{line}: *{event.anchor}: aliases are not understood; write the value out")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise ConfigError(f"{path}:{line}: more than {MAX_DEPTH} levels; no key of an experiment is that deep")


def _sentence(mistake: ErrorDetails, document: Document, model: type[BaseModel]) -> str:
    key_path: KeyPath = mistake["loc"]
    place = document.place(key_path)
    subject = f"{_dotted(key_path)}: " if key_path else ""
    match mistake["type"]:
        case "extra_forbidden":
            return f"{place}: {subject}unknown key; {_cure_for_unknown(key_path, model)}"
        case "missing":
            return f"{place}: {subject}this key is missing; {_description(key_path, model)}"
        case "value_error" if isinstance(mistake["input"], dict):
            return f"{place}: {subject}{_problem(mistake)}"
        case _:
            return f"{place}: {subject}{mistake['input']!r}: {_problem(mistake)}"


def _problem(mistake: ErrorDetails) -> str:
    text = mistake["msg"].removeprefix("Value error, ").replace("Input should be", "should be", 1)
    if mistake["type"] in {"byte_size", "byte_size_unit"}:
        return f"{text}; {SIZE_EXAMPLE}"
    if mistake["type"] in {"model_type", "model_attributes_type"}:
        return "should be keys with values, indented below this one"
    return text


def _cure_for_unknown(key_path: KeyPath, model: type[BaseModel]) -> str:
    known = list(_model_at(key_path[:-1], model).model_fields)
    if close := difflib.get_close_matches(str(key_path[-1]), known, n=1):
        return f"did you mean {_dotted((*key_path[:-1], close[0]))}?"
    return f"the keys here are {', '.join(known)}"


def _description(key_path: KeyPath, model: type[BaseModel]) -> str:
    name = key_path[-1]
    about = _model_at(key_path[:-1], model).model_fields[str(name)].description
    return f"write '{name}: ...'" + (f" ({about.rstrip('.')})" if about else "")


def _model_at(key_path: KeyPath, model: type[BaseModel]) -> type[BaseModel]:
    for key in key_path:
        annotation = model.model_fields[str(key)].annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            model = annotation
    return model


def _dotted(key_path: KeyPath) -> str:
    text = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in key_path)
    return text.removeprefix(".")


def _kind(data: object) -> str:
    return "a list" if isinstance(data, list) else f"only {data!r}"
