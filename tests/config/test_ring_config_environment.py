"""Settings of a ring from variables, for programs that have no option for them."""

from pathlib import Path

import pytest

from ringwide.config.ring_config import RingConfig, from_environment
from ringwide.errors import ConfigError


@pytest.fixture(autouse=True)
def no_protection_but_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RINGWIDE_KEY_FILE", "RINGWIDE_INSECURE"):
        monkeypatch.delenv(name, raising=False)


def test_an_environment_without_settings_is_one_of_defaults() -> None:
    assert from_environment({}) == from_environment({"RINGWIDE_CONFIG": "", "RINGWIDE_SET": " "}) == RingConfig()


def test_a_file_has_the_keys_of_a_ring_and_a_variable_changes_them(tmp_path: Path) -> None:
    (tmp_path / "ring.yaml").write_text("lanes: 2\nsegment_bytes: 2MiB\n")
    environ = {
        "RINGWIDE_CONFIG": str(tmp_path / "ring.yaml"),
        "RINGWIDE_SET": "ring.lanes=3 codec=int8 allow_lossy=true",
    }
    assert from_environment(environ) == RingConfig(
        lanes=3,
        segment_bytes=2 * 1024 * 1024,  # type: ignore[arg-type]
        codec="int8",
        allow_lossy=True,
    )


def test_a_value_with_spaces_stands_in_quotes() -> None:
    tls = from_environment({"RINGWIDE_SET": "'tls={cert: a.pem, key: b.pem, ca: c.pem}' lanes=2"}).tls
    assert tls is not None
    assert (tls.cert, tls.key, tls.ca) == (Path("a.pem"), Path("b.pem"), Path("c.pem"))


def test_an_empty_file_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "ring.yaml").write_text("# later\n")
    assert from_environment({"RINGWIDE_CONFIG": str(tmp_path / "ring.yaml")}) == RingConfig()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lanes: 1\nlans: 2\n", ":2: lans: unknown key; did you mean lanes?"),
        ("lanes: 0\n", ":1: lanes: 0: should be greater than or equal to 1"),
        ("lanes: [\n", ":2: not YAML"),
        ("- 5\n", ":1: the file holds a list; it should hold keys, as in 'lanes: 2'"),
        ("\ncodec: int8\n", ":2: codec 'int8' loses precision; set allow_lossy: true"),
    ],
)
def test_a_mistake_in_the_file_names_variable_line_and_key(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "ring.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        from_environment({"RINGWIDE_CONFIG": str(path)})
    assert str(caught.value).startswith(f"RINGWIDE_CONFIG: {path}{message}")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("/no/such.yaml", "RINGWIDE_CONFIG: /no/such.yaml: the settings of the ring cannot be read: No such file"),
        ("ringwide-key-1 00ff", "RINGWIDE_CONFIG: this is a key itself; name the file that it is in"),
    ],
)
def test_a_file_that_cannot_be_is_named(name: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_environment({"RINGWIDE_CONFIG": name})
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lans=2", "RINGWIDE_SET lans=2: lans: unknown key; did you mean lanes?"),
        ("codec=lz4 lanes=many", "RINGWIDE_SET lanes=many: lanes: 'many': should be a valid integer"),
        ("codec=int8", "RINGWIDE_SET codec=int8: codec 'int8' loses precision"),
        ("lanes", "RINGWIDE_SET lanes: there is no value; write KEY=VALUE, as in RINGWIDE_SET='codec=lz4 lanes=2'"),
        ("=2", "RINGWIDE_SET =2: there is no key before the ="),
        ("codec='lz4", 'RINGWIDE_SET: "codec=\'lz4": No closing quotation; write KEY=VALUE'),
        ("key_file=" + "ab" * 32, "key_file: this is a key itself"),
    ],
)
def test_a_mistake_in_the_variable_is_named(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_environment({"RINGWIDE_SET": text})
    assert str(caught.value).startswith(message) or message in str(caught.value)
    assert "ab" * 32 not in str(caught.value)


def test_variables_that_contradict_each_other_are_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGWIDE_KEY_FILE", "ring.key")
    monkeypatch.setenv("RINGWIDE_INSECURE", "1")
    with pytest.raises(ConfigError, match=r"^the environment: RINGWIDE_INSECURE lets anybody join, RINGWIDE_KEY_FILE"):
        from_environment({})
