from ringwide.config.yaml_text import dotted, parse


def test_keys_stay_what_was_written() -> None:
    data, places = parse("on: 1\nbelow:\n  - x\n  - no: 2\n", lambda line: f"line {line}")
    assert data == {"on": 1, "below": ["x", {"no": 2}]}
    assert places[("below", 1, "no")] == "line 4"


def test_every_key_path_begins_with_the_root() -> None:
    data, places = parse("{a: [1, 2]}", lambda line: f"line {line}", ("block", "key"))
    assert data == {"a": [1, 2]}
    assert set(places) == {
        ("block", "key"),
        ("block", "key", "a"),
        ("block", "key", "a", 0),
        ("block", "key", "a", 1),
    }


def test_an_empty_text_is_nothing_and_has_a_place() -> None:
    assert parse("", lambda line: f"line {line}", ("key",)) == (None, {("key",): "line 1"})


def test_a_path_is_written_with_dots_and_brackets() -> None:
    assert dotted(("report", "beside", 0, "name")) == "report.beside[0].name"
    assert dotted(()) == ""
