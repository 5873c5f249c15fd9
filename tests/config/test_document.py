from pathlib import Path

import pytest

from ringwide.config.document import Document
from ringwide.config.yaml_text import KeyPath, parse
from ringwide.errors import ConfigError


def document(text: str) -> Document:
    data, places = parse(text, lambda line: f"f:{line}")
    return Document(Path("f"), data, places)


def change(base: Document, key_path: KeyPath, value: object, text: str) -> Document:
    return base.with_change(key_path, value, {key_path: text}, text)


def test_a_change_leaves_the_original_as_it_was() -> None:
    base = document("ring: {lanes: 1, codec: none}\n")
    changed = change(base.layer(), ("ring", "lanes"), 2, "--set")
    assert changed.data == {"ring": {"lanes": 2, "codec": "none"}}
    assert base.data == {"ring": {"lanes": 1, "codec": "none"}}


def test_a_change_makes_the_blocks_around_it() -> None:
    changed = change(document("nodes: 2\n").layer(), ("ring", "lanes"), 2, "--set")
    assert changed.data == {"nodes": 2, "ring": {"lanes": 2}}
    assert changed.place(("ring",)) == "--set"


def test_a_block_without_keys_can_be_given_some() -> None:
    assert change(document("ring:\n").layer(), ("ring", "lanes"), 2, "--set").data == {"ring": {"lanes": 2}}


def test_a_replaced_block_forgets_the_places_of_what_was_in_it() -> None:
    changed = change(document("ring:\n  lanes: 1\n").layer(), ("ring",), {}, "--set")
    assert changed.place(("ring", "lanes")) == "--set"


def test_no_key_can_be_below_a_value() -> None:
    with pytest.raises(ConfigError, match=r"--set: nodes: 2 has no keys below it; set nodes itself"):
        change(document("nodes: 2\n").layer(), ("nodes", "x", "y"), 1, "--set")


def test_a_place_is_that_of_the_nearest_thing_that_was_written() -> None:
    base = document("nodes: 2\nring:\n  lanes: 1\n")
    assert base.place(("ring", "lanes")) == "f:3"
    assert base.place(("ring", "codec", 4)) == "f:2"
    assert base.place(("training",)) == "f:1"


def test_a_block_is_to_be_looked_for_where_it_was_changed() -> None:
    base = document("nodes: 2\nring:\n  lanes: 1\ntraining: {}\n")
    changed = change(change(base.layer(), ("ring", "lanes"), 2, "one"), ("ring", "codec"), "lz4", "other")
    assert changed.place_of_block(("ring",)) == "one and other"
    assert changed.place_of_block(("training",)) == "f:4"
    assert base.place_of_block(("ring",)) == "f:2"


def test_what_is_simpler_has_fewer_changes() -> None:
    base = document("nodes: 2\n")
    changed = change(change(base.layer(), ("a",), 1, "one"), ("b",), 2, "other")
    assert [simpler.data for simpler in changed.simpler()] == [
        {"nodes": 2},
        {"nodes": 2, "a": 1},
        {"nodes": 2, "b": 2},
    ]
    assert list(base.simpler()) == []


def test_keys_that_were_changed_together_stay_together() -> None:
    together = change(change(document("nodes: 2\n").layer(), ("a",), 1, "one"), ("b",), 2, "one")
    assert [simpler.data for simpler in change(together, ("c",), 3, "other").simpler()][1] == {
        "nodes": 2,
        "a": 1,
        "b": 2,
    }
