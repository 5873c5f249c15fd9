from pathlib import Path

import pytest

from ringwide.config.yaml_text import as_yaml, written_size


def test_lists_of_words_are_one_line_and_lists_of_blocks_are_not() -> None:
    assert as_yaml({"b": [8, "x", None], "a": [{"c": True, "d": []}], "e": {"f": {}}}) == (
        "b: [8, x, null]\na:\n- c: true\n  d: []\ne:\n  f: {}\n"
    )


def test_a_path_is_text() -> None:
    assert as_yaml({"ring": {"key_file": Path("ring.key"), "beside": [Path("a b"), Path("1")]}}) == (
        "ring:\n  key_file: ring.key\n  beside: [a b, '1']\n"
    )


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, 0), (1, 1), (1024, "1KiB"), (1536, 1536), (1536 * 1024, "1536KiB"), (4 * 1024**2, "4MiB"), (1024**3, "1GiB")],
)
def test_a_size_has_a_unit_if_that_is_exact(size: int, text: str | int) -> None:
    assert written_size(size) == text
