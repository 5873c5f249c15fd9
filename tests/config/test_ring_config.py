"""Settings that cannot work are refused when they are loaded, with what would be right; also from a file, by line."""

import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from ringwide.bootstrap.protection import make_key_file
from ringwide.config.ring_config import CODECS, RingConfig
from ringwide.config.validation import DECIDES_BITS, EQUAL, fields_with
from ringwide.errors import ConfigError
from ringwide.experiment.config import load_experiment

REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"codec": "gzip"},
        "'gzip' is not a codec; choose one of none, lz4, lz4-frame, zlib, bf16, fp16, int8, topk, auto",
    ),
    *(
        (
            {"codec": name},
            f"codec '{name}' loses precision; set allow_lossy: true if you mean it, "
            "or choose a lossless one: none, lz4, lz4-frame, zlib",
        )
        for name in ("bf16", "fp16", "int8", "topk")
    ),
    ({"codec": "zlib", "codec_level": 12}, "codec_level 12: zlib has levels 1 to 9"),
    ({"codec": "zlib", "codec_level": 0}, "codec_level 0: zlib has levels 1 to 9"),
    ({"codec": "lz4-frame", "codec_level": 17}, "codec_level 17: lz4-frame has levels 0 to 16"),
    ({"codec": "lz4", "codec_level": 3}, "codec_level 3: lz4 has no levels, lz4-frame and zlib have"),
    ({"codec_level": 3}, "codec_level 3: none has no levels, lz4-frame and zlib have"),
    ({"codec": "lz4", "codec_acceleration": 0}, "codec_acceleration 0: lz4 takes 1 to 65537"),
    ({"codec": "zlib", "codec_acceleration": 4}, "codec_acceleration 4: zlib has none, only lz4 has"),
    (
        {"codec": "bf16", "allow_lossy": True, "codec_shuffle": True},
        "codec_shuffle: bf16 cannot be shuffled, lz4, lz4-frame and zlib can",
    ),
    ({"codec_shuffle": True}, "codec_shuffle: none cannot be shuffled, lz4, lz4-frame and zlib can"),
    *(
        (
            {"codec": "topk", "allow_lossy": True, "topk_fraction": fraction},
            f"topk_fraction {fraction}: it must be above 0 and at most 1",
        )
        for fraction in (0.0, -0.1, 1.5)
    ),
    ({"codec": "lz4", "topk_fraction": 0.1}, "topk_fraction 0.1: it is for codec topk, not lz4"),
    (
        {"codec": "lz4", "algorithm": "tree"},
        "algorithm 'tree' sends numbers raw; use 'auto' or 'ring' with codec 'lz4'",
    ),
    (
        {"codec": "auto", "algorithm": "tree"},
        "algorithm 'tree' sends numbers raw; use 'auto' or 'ring' with codec 'auto'",
    ),
    (
        {"codec": "lz4", "segment_bytes": 262144},
        "no segment reaches threshold_bytes (524288), as segment_bytes is 262144, so codec 'lz4' would do nothing; "
        "set threshold_bytes to at most 131072",
    ),
    (
        {"codec": "auto", "codec_level": 3},
        "codec_level belongs to a codec of your choice; remove it, or name that codec, not auto",
    ),
    ({"codec": "auto", "codec_acceleration": 3}, "codec_acceleration belongs to a codec of your choice"),
    ({"codec": "auto", "codec_shuffle": True}, "codec_shuffle belongs to a codec of your choice"),
    ({"codec": "auto", "topk_fraction": 0.5}, "topk_fraction belongs to a codec of your choice"),
    (
        {"encrypt": True},
        "encrypt needs the key that all ranks share: set key_file (or RINGWIDE_KEY_FILE) to a file made by "
        "`python -m ringwide keygen FILE`",
    ),
    (
        {"encrypt": True, "key_file": "ring.key", "tls": {"cert": "a", "key": "b", "ca": "c"}},
        "encrypt and tls both encrypt: choose encrypt with a key_file, or tls with certificates",
    ),
    (
        {"insecure": True, "key_file": "ring.key"},
        "insecure lets anybody join, key_file only those whom you trust; remove one of the two",
    ),
    (
        {"insecure": True, "tls": {"cert": "a", "key": "b", "ca": "c"}},
        "insecure lets anybody join, tls only those whom you trust; remove one of the two",
    ),
    ({"codec_threads": 65}, "should be auto or a whole number from 0 to 64"),
    ({"codec_threads": -1}, "should be auto or a whole number from 0 to 64"),
]


def named(settings: object) -> str:
    return " ".join(f"{key}={value}" for key, value in settings.items()) if isinstance(settings, dict) else ""


@pytest.mark.parametrize(("settings", "words"), REFUSED, ids=named)
def test_what_cannot_work_is_refused_with_what_would(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        RingConfig(**settings)
    assert words in str(caught.value)


@pytest.mark.parametrize(("settings", "words"), REFUSED, ids=named)
def test_in_a_file_the_mistake_has_a_line(settings: dict[str, Any], words: str, tmp_path: Path) -> None:
    path = tmp_path / "experiment.yaml"
    lines = [f"  {key}: {str(value).lower() if isinstance(value, bool) else value}" for key, value in settings.items()]
    path.write_text("name: t\nnodes: 2\nring:\n" + "\n".join(lines) + "\n", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_experiment(path)
    message = str(caught.value)
    place, _, rest = message.removeprefix(f"{path}:").partition(": ")
    assert int(place) in range(3, 4 + len(lines))
    assert rest.startswith("ring")
    assert words in rest
    assert "\n" not in message


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("threshold_bytes", "never"),
        ("threshold_bytes", -1),
        ("threshold_bytes", "1 furlong"),
        ("codec_threads", "many"),
        ("codec_threads", 1.5),
        ("codec_level", "high"),
        ("allow_lossy", "perhaps"),
        ("topk_fraction", "half"),
        ("topk_fraction", float("nan")),
    ],
)
def test_values_that_make_no_sense_are_refused_by_name(setting: str, value: Any, tmp_path: Path) -> None:
    codec = "topk" if setting == "topk_fraction" else "zlib"
    given = {"codec": codec, "allow_lossy": True, setting: value}
    with pytest.raises(ValidationError):
        RingConfig(**given)
    path = tmp_path / "experiment.yaml"
    written = ".nan" if value != value else value
    lines = {"codec": codec, "allow_lossy": "true", setting: written}
    ring = "".join(f"  {key}: {line}\n" for key, line in lines.items())
    path.write_text(f"name: t\nnodes: 2\nring:\n{ring}", encoding="utf-8")
    with pytest.raises(ConfigError, match=setting) as caught:
        load_experiment(path)
    assert "\n" not in str(caught.value)


ACCEPTED: list[dict[str, Any]] = [
    {},
    {"allow_lossy": True},
    {"codec": "auto"},
    {"codec": "auto", "allow_lossy": True, "threshold_bytes": "auto"},
    {"codec": "zlib", "codec_level": 9, "codec_shuffle": True},
    {"codec": "lz4-frame", "codec_level": 0},
    {"codec": "lz4", "codec_acceleration": 65_537},
    {"codec": "topk", "allow_lossy": True, "topk_fraction": 1.0},
    {"codec": "lz4", "segment_bytes": 4096, "threshold_bytes": 0},
    {"codec": "lz4", "segment_bytes": 4096, "threshold_bytes": "auto"},
    {"codec": "lz4", "threshold_bytes": "64KiB", "codec_threads": 0},
    {"segment_bytes": 4096},
    {"algorithm": "tree"},
]


@pytest.mark.parametrize("settings", ACCEPTED, ids=named)
def test_what_can_work_is_accepted(settings: dict[str, Any]) -> None:
    RingConfig(**settings)


@pytest.mark.parametrize("name", CODECS)
def test_every_codec_can_be_chosen(name: str) -> None:
    config = RingConfig(codec=name, allow_lossy=True)
    assert name == "auto" or config.make_codec().name == name


def test_settings_reach_their_codec() -> None:
    assert vars(RingConfig(codec="zlib", codec_level=7).make_codec())["level"] == 7
    assert vars(RingConfig(codec="lz4", codec_acceleration=9).make_codec())["acceleration"] == 9
    assert vars(RingConfig(codec="topk", allow_lossy=True, topk_fraction=0.25).make_codec())["fraction"] == 0.25
    assert RingConfig(codec="lz4", codec_shuffle=True).make_codec().name == "lz4+shuffle"


@pytest.mark.parametrize(
    ("settings", "nbytes"),
    [
        ({}, 1024 * 1024),
        ({"tree_bytes": "4KiB"}, 4096),
        ({"codec": "lz4"}, 512 * 1024),
        ({"codec": "lz4", "threshold_bytes": "64KiB"}, 64 * 1024),
        ({"codec": "lz4", "threshold_bytes": 0}, 0),
        ({"codec": "lz4", "threshold_bytes": "auto"}, 256 * 1024),
        ({"threshold_bytes": 0}, 1024 * 1024),
    ],
)
def test_the_tree_does_not_carry_what_a_codec_is_wanted_for(settings: dict[str, Any], nbytes: int) -> None:
    assert RingConfig(**settings).tree_bytes_where(1024 * 1024) == nbytes


# -- what ranks compare is what follows from what was written


def written_out() -> dict[str, Any]:
    return {name: field.default for name, field in RingConfig.model_fields.items()}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({}, written_out()),
        ({"allow_lossy": True}, {"threshold_bytes": 0}),  # of codecs, where there is none
        (
            {"codec": "lz4", "threshold_bytes": "64KiB", "tree_bytes": "64KiB"},
            {"codec": "lz4", "threshold_bytes": "64KiB", "tree_bytes": "128KiB"},
        ),
    ],
)
def test_what_makes_no_difference_is_no_disagreement(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert RingConfig(**one).compared() == RingConfig(**other).compared()


def test_each_setting_says_whether_ranks_must_agree_on_it_and_whether_bits_depend_on_it() -> None:
    equal = ["segment_bytes", "lanes", "messages", "algorithm", "tree_bytes", "half_precision"]
    assert list(fields_with(RingConfig, EQUAL)) == [*equal, "codec", "allow_lossy", "threshold_bytes"]
    bits = ["segment_bytes", "algorithm", "tree_bytes", "half_precision", "codec", "allow_lossy", "topk_fraction"]
    assert list(fields_with(RingConfig, DECIDES_BITS)) == [*bits, "threshold_bytes", "error_feedback"]


# -- what guards the ring is read when a ring is joined


def test_certificates_that_are_not_there_are_named(tmp_path: Path) -> None:
    files = {name: tmp_path / name for name in ("cert", "key", "ca")}
    with pytest.raises(ConfigError, match=r"tls\.key: .*/key cannot be read: No such file or directory"):
        RingConfig(tls=files).load_protection()


def test_encryption_without_its_package_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_key_file(tmp_path / "ring.key")
    config = RingConfig(key_file=tmp_path / "ring.key", encrypt=True)
    assert config.load_protection().encrypt
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    with pytest.raises(ConfigError, match=r"pip install 'ringwide\[secure\]'"):
        config.load_protection()


def test_the_setting_goes_before_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RINGWIDE_KEY_FILE", "/gone")
    make_key_file(tmp_path / "ring.key")
    assert RingConfig(key_file="~/ring.key").load_protection().secrets
    with pytest.raises(ConfigError, match=r"^RINGWIDE_KEY_FILE: /gone: there is no such key file"):
        RingConfig().load_protection()
    monkeypatch.setenv("RINGWIDE_KEY_FILE", "")
    assert RingConfig().load_protection().secrets == ()


def test_what_shall_be_encrypted_has_a_key_when_the_ring_is_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_key_file(tmp_path / "ring.key")
    monkeypatch.setenv("RINGWIDE_KEY_FILE", str(tmp_path / "ring.key"))
    config = RingConfig(encrypt=True)
    assert config.load_protection().secrets
    monkeypatch.delenv("RINGWIDE_KEY_FILE")
    with pytest.raises(ConfigError, match=r"^encrypt needs the key that all ranks share: set key_file"):
        config.load_protection()


def test_insecure_and_a_key_from_the_environment_contradict_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    config = RingConfig(insecure=True)
    monkeypatch.setenv("RINGWIDE_KEY_FILE", "ring.key")
    message = "insecure lets anybody join, RINGWIDE_KEY_FILE only those whom you trust; remove one of the two"
    with pytest.raises(ValidationError, match=message):
        RingConfig(insecure=True)
    with pytest.raises(ConfigError, match=message):
        config.load_protection()


NAMELESS = {
    "~no-such-user/x": "~no-such-user/x: there is no user of that name here, or it has no home; write the path out",
    "a\0b": r"'a\x00b': no file can have a name with a zero byte in it",
}


@pytest.mark.parametrize("name", NAMELESS, ids=["user", "zero"])
@pytest.mark.parametrize("where", ["key_file", "tls.cert", "tls.key", "tls.ca"])
def test_what_can_be_no_file_is_named(where: str, name: str, tmp_path: Path) -> None:
    _, _, which = where.partition(".")
    settings = {"tls": dict.fromkeys(("cert", "key", "ca"), tmp_path / "x") | {which: name}} if which else {where: name}
    with pytest.raises(ConfigError) as caught:
        RingConfig(**settings).load_protection()
    assert str(caught.value) == f"{where}: {NAMELESS[name]}"


def test_a_variable_that_can_be_no_file_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGWIDE_KEY_FILE", "~no-such-user/x")
    with pytest.raises(ConfigError, match=r"^RINGWIDE_KEY_FILE: ~no-such-user/x: there is no user of that name"):
        RingConfig().load_protection()


def test_that_anybody_may_join_can_be_said_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for word, insecure in (("1", True), ("true", True), ("0", False), ("", False)):
        monkeypatch.setenv("RINGWIDE_INSECURE", word)
        assert RingConfig().load_protection().will_do_beyond_loopback is insecure
    monkeypatch.setenv("RINGWIDE_INSECURE", "1")
    with pytest.raises(ValidationError, match="RINGWIDE_INSECURE lets anybody join, key_file only those"):
        RingConfig(key_file=Path("ring.key"))


def test_a_word_that_is_neither_yes_nor_no_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    config = RingConfig()
    monkeypatch.setenv("RINGWIDE_INSECURE", "maybe")
    with pytest.raises(ConfigError, match="RINGWIDE_INSECURE: 'maybe': write 1 if everybody on the network may join"):
        config.load_protection()
