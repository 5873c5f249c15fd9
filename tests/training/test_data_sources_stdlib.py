import os
import tempfile
from pathlib import Path

import numpy
import pytest
import torch

from ringwide.errors import ConfigError
from ringwide.training import data_sources as stdlib
from ringwide.training.data_sources import TextSamples, cached_text, sources, standard_library

SIZE = 20_000


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "ringwide"


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A standard library small enough to know by heart."""
    root = tmp_path / "library"
    files = {
        "one.py": "1" * 30_000,
        "two.py": "é" * 100,
        "package/three.py": "3" * 500,
        "data.txt": "not python",
        "_sysconfigdata_linux.py": "not on every machine",
        "test/test_one.py": "a test",
        "package/tests/test_three.py": "a test",
        "site-packages/torch.py": "not of the library",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    monkeypatch.setattr(stdlib, "_library", lambda: str(root))
    return root


def test_a_sample_is_a_window_of_the_text_and_its_targets_come_one_later() -> None:
    text = numpy.frombuffer(b"abcdefghijk", dtype=numpy.uint8)
    samples = TextSamples(text, context=5)
    inputs, targets = samples.batch(torch.tensor([1, 0]))
    assert len(samples) == 2
    assert [bytes(row) for row in inputs.tolist()] == [b"fghij", b"abcde"]
    assert [bytes(row) for row in targets.tolist()] == [b"ghijk", b"bcdef"]
    assert inputs.dtype == targets.dtype == torch.int64


@pytest.mark.parametrize(("length", "expected"), [(0, 0), (1, 0), (5, 0), (6, 1), (10, 1), (11, 2)])
def test_only_samples_with_all_their_targets_count(length: int, expected: int) -> None:
    samples = TextSamples(numpy.zeros(length, dtype=numpy.uint8), context=5)
    assert len(samples) == expected
    inputs, targets = samples.batch(torch.arange(expected))
    assert inputs.shape == targets.shape == (expected, 5)


def test_the_end_of_the_text_is_held_out(cache: Path) -> None:
    data = standard_library(text_bytes=SIZE, context=10)
    text = next(cache.iterdir()).read_bytes()
    assert (data.inputs, data.outputs) == ((10,), 128)
    assert (len(data.train), len(data.test)) == (1899, 99)
    assert bytes(data.train.batch(torch.tensor([0]))[0][0].tolist()) == text[:10]
    assert bytes(data.train.batch(torch.tensor([1898]))[1][0].tolist()) == text[18_981:18_991]
    assert bytes(data.test.batch(torch.tensor([0]))[0][0].tolist()) == text[19_000:19_010]


def test_the_text_is_ascii_and_the_same_each_time() -> None:
    path = cached_text(SIZE)
    text = path.read_bytes()
    assert text.isascii()
    assert len(text) == SIZE
    path.unlink()
    assert cached_text(SIZE).read_bytes() == text


def test_only_programs_of_the_library_are_in_it(library: Path) -> None:
    assert {path.name for path in sources()} == {"one.py", "two.py", "three.py"}
    text = cached_text(100_000).read_bytes()
    assert sorted(text) == sorted(b"1" * 30_000 + b"?" * 200 + b"3" * 500)


def test_the_order_is_by_name_and_not_as_the_disk_has_it(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order = sources()
    walk = os.walk
    monkeypatch.setattr(os, "walk", lambda top: ((path, inner, files[::-1]) for path, inner, files in walk(top)))
    assert sources() == order


@pytest.mark.usefixtures("library")
def test_a_text_in_the_cache_is_used_as_it_is(cache: Path) -> None:
    path = cached_text(SIZE)
    path.write_bytes(b"x" * SIZE)
    assert cached_text(SIZE).read_bytes() == b"x" * SIZE
    assert [file.name for file in cache.iterdir()] == [path.name]


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("size", [0, SIZE - 1, SIZE + 1])
def test_a_text_of_the_wrong_size_is_made_anew(size: int) -> None:
    path = cached_text(SIZE)
    whole = path.read_bytes()
    path.write_bytes(b"x" * size)
    assert cached_text(SIZE).read_bytes() == whole


def test_a_library_smaller_than_asked_for_is_not_made_anew(library: Path) -> None:
    path = cached_text(100_000)
    path.write_bytes(b"x" * 30_700)
    assert cached_text(100_000).read_bytes() == b"x" * 30_700


@pytest.mark.usefixtures("library")
def test_a_write_that_fails_leaves_nothing_behind(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(ConfigError, match="No space left on device; set XDG_CACHE_HOME"):
        cached_text(SIZE)
    assert list(cache.iterdir()) == []


@pytest.mark.usefixtures("library")
def test_without_a_cache_the_temporary_directory_will_do(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.parent.write_text("a file where the directory should be")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    assert cached_text(SIZE).parent.parent == tmp_path / "temporary"
    assert cached_text(SIZE).stat().st_size == SIZE


@pytest.mark.usefixtures("library")
def test_a_text_too_short_for_one_sample_says_what_would_do() -> None:
    with pytest.raises(ConfigError, match=r"training.context: 64: .*text_bytes at least 1300"):
        standard_library(text_bytes=1299, context=64)
    assert len(standard_library(text_bytes=1300, context=64).test) == 1


def test_a_python_without_sources_says_so(library: Path) -> None:
    for path in sources():
        path.unlink()
    with pytest.raises(ConfigError, match="has no sources in"):
        cached_text(SIZE)
