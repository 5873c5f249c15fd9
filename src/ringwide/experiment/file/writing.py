"""Plain data as YAML that can be read again, in the way a person would write it."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

UNITS = {"GiB": 1024**3, "MiB": 1024**2, "KiB": 1024}


def as_yaml(document: dict[str, Any]) -> str:
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


def written_size(size: int) -> str | int:
    """Without rounding: 4MiB, 1536KiB, 4097."""
    for unit, bytes_in_unit in UNITS.items():
        if size and size % bytes_in_unit == 0:
            return f"{size // bytes_in_unit}{unit}"
    return int(size)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        """Write every value out: an alias for one that occurs twice would be refused when it is read."""
        return True

    def represent_sequence(
        self, tag: str, sequence: Iterable[Any], flow_style: bool | None = None
    ) -> yaml.nodes.SequenceNode:
        """Numbers and words side by side, blocks one below the other."""
        items = list(sequence)
        return super().represent_sequence(tag, items, flow_style=not any(isinstance(item, dict) for item in items))

    def represent_path(self, path: Path) -> yaml.nodes.ScalarNode:
        return self.represent_str(str(path))


_Dumper.add_multi_representer(Path, _Dumper.represent_path)
