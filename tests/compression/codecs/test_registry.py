import subprocess
import sys
from typing import Any

import pytest

from ringwide.compression.codecs.registry import LOSSLESS, LOSSY, NAMES, decoder, make


def test_names() -> None:
    assert NAMES == ("none", "lz4", "lz4-frame", "zlib", "bf16", "fp16", "int8", "topk")
    assert LOSSLESS == ("none", "lz4", "lz4-frame", "zlib")
    assert LOSSY == ("bf16", "fp16", "int8", "topk")


@pytest.mark.parametrize("name", NAMES)
def test_a_codec_has_its_name_and_the_number_of_its_place(name: str) -> None:
    codec = make(name)
    assert codec.name == name
    assert codec.number == NAMES.index(name)
    assert codec.lossy is (name in LOSSY)
    reader = decoder(codec.number)
    assert reader is not None
    assert reader.name == name


@pytest.mark.parametrize("name", LOSSLESS[1:])
def test_a_shuffled_codec_has_a_number_of_its_own(name: str) -> None:
    codec = make(name, shuffle=True)
    assert codec.name == f"{name}+shuffle"
    assert codec.number == NAMES.index(name) + 64
    reader = decoder(codec.number)
    assert reader is not None
    assert reader.name == codec.name


@pytest.mark.parametrize("number", [-1, 8, 63, 64, 68, 255, 1000])
def test_other_numbers_are_nobody(number: int) -> None:
    assert decoder(number) is None


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("lz4", {"acceleration": 1}),
        ("lz4", {"acceleration": 65_537, "shuffle": True}),
        ("lz4-frame", {"level": 0}),
        ("lz4-frame", {"level": 16}),
        ("zlib", {"level": 1}),
        ("zlib", {"level": 9}),
        ("topk", {"fraction": 1.0}),
        ("topk", {"fraction": 1e-9}),
    ],
)
def test_settings_up_to_their_ends(name: str, settings: dict[str, Any]) -> None:
    assert make(name, **settings).name.startswith(name)


@pytest.mark.parametrize(
    ("name", "settings", "text"),
    [
        ("gzip", {}, "codec 'gzip': there are none, lz4, lz4-frame, zlib, bf16, fp16, int8 and topk"),
        ("zlib", {"level": 12}, "codec_level 12: zlib has levels 1 to 9"),
        ("zlib", {"level": 0}, "codec_level 0: zlib has levels 1 to 9"),
        ("lz4-frame", {"level": 17}, "codec_level 17: lz4-frame has levels 0 to 16"),
        ("lz4-frame", {"level": -1}, "codec_level -1: lz4-frame has levels 0 to 16"),
        ("lz4", {"level": 3}, "codec_level 3: lz4 has no levels, lz4-frame and zlib have"),
        ("none", {"level": 3}, "codec_level 3: none has no levels, lz4-frame and zlib have"),
        ("zlib", {"acceleration": 2}, "codec_acceleration 2: zlib has none, only lz4 has"),
        ("lz4", {"acceleration": 0}, "codec_acceleration 0: lz4 takes 1 to 65537"),
        ("lz4", {"acceleration": 65_538}, "codec_acceleration 65538: lz4 takes 1 to 65537"),
        ("int8", {"shuffle": True}, "codec_shuffle: int8 cannot be shuffled, lz4, lz4-frame and zlib can"),
        ("none", {"shuffle": True}, "codec_shuffle: none cannot be shuffled, lz4, lz4-frame and zlib can"),
        ("lz4", {"fraction": 0.1}, "topk_fraction 0.1: it is for codec topk, not lz4"),
        ("topk", {"fraction": 0.0}, "topk_fraction 0.0: it must be above 0 and at most 1"),
        ("topk", {"fraction": 1.5}, "topk_fraction 1.5: it must be above 0 and at most 1"),
        ("topk", {"fraction": float("nan")}, "topk_fraction nan: it must be above 0 and at most 1"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(name: str, settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError) as caught:
        make(name, **settings)
    assert str(caught.value) == text


def test_the_registry_is_cheap_to_import() -> None:
    script = (
        "import sys, ringwide.compression.codecs.registry; print(*{'torch', 'pydantic', 'asyncio'} & set(sys.modules))"
    )
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=110, check=True)
    assert answer.stdout.split() == []
