"""Data sources by name: clusters, digits, the text of Python's standard library, or the user's own."""

import hashlib
import os
import platform
import sysconfig
import tempfile
import zlib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy
import torch
from torch import Tensor

from ringwide.errors import ConfigError
from ringwide.training.config import TrainingConfig
from ringwide.training.samples import Data, TensorSamples, shuffled


def load_data(config: TrainingConfig) -> Data:
    """Data that an experiment names."""
    match config.data:
        case "clusters":
            return clusters()
        case "digits":
            return digits()
        case "stdlib":
            return standard_library(text_bytes=config.text_bytes, context=config.context)
        case _:
            from ringwide.training.user_data import load_user_data

            return load_user_data(config.data, config.data_options)


# -- clusters

CLASSES = 10
FEATURES = 128
TRAIN, TEST = 2560, 512
SEED = 0  # fixed: runs with different seeds learn from the same samples
DISTANCE = 0.33  # spread of the centres; each cloud has 1. A linear model gets about one point in twenty wrong


def clusters() -> Data:
    """Ten overlapping clouds of points."""
    rng = numpy.random.default_rng(SEED)
    centres = DISTANCE * rng.standard_normal((CLASSES, FEATURES))
    return Data(
        train=_around(centres, TRAIN, rng), test=_around(centres, TEST, rng), inputs=(FEATURES,), outputs=CLASSES
    )


def _around(centres: numpy.ndarray, count: int, rng: numpy.random.Generator) -> TensorSamples:
    labels = numpy.arange(count) % CLASSES
    # Rounded to float32 at the end, which also hides differences between mathematical libraries.
    points = centres[labels] + rng.standard_normal((count, FEATURES))
    return TensorSamples(torch.from_numpy(points.astype(numpy.float32)), torch.from_numpy(labels))


# -- digits

DIGITS_TEST_PART = 5  # one sample in five is held out
SPLIT_SEED = 0  # fixed: runs with different seeds are tested on the same samples
BRIGHTEST = 16


def digits() -> Data:
    """Scikit-learn's 1,797 handwritten digits of 8x8 pixels."""
    pixels, labels = _load_digits()
    features = torch.from_numpy(pixels).float().div_(BRIGHTEST)
    targets = torch.from_numpy(labels).long()
    order = shuffled(len(targets), SPLIT_SEED)
    held_out, kept = order[: len(order) // DIGITS_TEST_PART], order[len(order) // DIGITS_TEST_PART :]
    return Data(
        train=TensorSamples(features[kept], targets[kept]),
        test=TensorSamples(features[held_out], targets[held_out]),
        inputs=(features.shape[1],),
        outputs=int(targets.max()) + 1,
    )


def _load_digits() -> tuple[numpy.ndarray, numpy.ndarray]:
    """Read the file that comes with scikit-learn, because importing it adds 1.4 s to every node's start."""
    found = find_spec("sklearn")
    if found is None or not found.submodule_search_locations:
        raise ConfigError(
            "training.data: 'digits' needs scikit-learn, which is not installed: pip install 'ringwide[experiments]'"
        )
    file = Path(found.submodule_search_locations[0], "datasets", "data", "digits.csv.gz")
    if not file.exists():  # scikit-learn does not promise where it is
        return _load_digits_slowly()
    table = numpy.loadtxt(file, delimiter=",")
    return table[:, :-1], table[:, -1]


def _load_digits_slowly() -> tuple[numpy.ndarray, numpy.ndarray]:
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    return pixels, labels


# -- text of the standard library

VOCABULARY = 128  # ASCII
TEXT_TEST_PART = 20  # the last twentieth is held out
SKIPPED = {
    *("site-packages", "dist-packages", "__pycache__"),  # not part of the library
    *("test", "tests", "idle_test"),  # not installed everywhere
    *("encodings", "pydoc_data"),  # a sixth of the text, but tables and manuals rather than programs
}
ASCII_ONLY = bytes(range(VOCABULARY)) + b"?" * (256 - VOCABULARY)


class TextSamples:
    """Sample i is `context` characters from i * context on; its targets are the same shifted by one."""

    __slots__ = ("_characters", "_context", "_window")

    def __init__(self, characters: numpy.ndarray, context: int) -> None:
        self._characters, self._context = characters, context
        self._window = numpy.arange(context + 1)

    def __len__(self) -> int:
        return max(0, len(self._characters) - 1) // self._context

    def batch(self, indexes: Tensor) -> tuple[Tensor, Tensor]:
        positions = indexes.numpy()[:, None] * self._context + self._window
        cut = torch.from_numpy(self._characters[positions].astype(numpy.int64))
        return cut[:, :-1], cut[:, 1:]

    def digest(self) -> bytes:
        return hashlib.sha256(self._characters.data).digest()


def standard_library(*, text_bytes: int, context: int) -> Data:
    """Text of Python's standard library, whose next character is to be predicted.

    It is written to a cache once, and read through a memory map from then on: nodes on one machine share its pages, and
    only pages used by batches are in memory.
    """
    # A plain view: every slice of a memmap would be a costly new memmap.
    text = numpy.memmap(cached_text(text_bytes), dtype=numpy.uint8, mode="r").view(numpy.ndarray)
    kept = len(text) - len(text) // TEXT_TEST_PART
    train, test = TextSamples(text[:kept], context), TextSamples(text[kept:], context)
    if not len(test):
        raise ConfigError(
            f"training.context: {context}: the held-out part of {len(text)} characters has no whole sample;"
            f" make training.text_bytes at least {TEXT_TEST_PART * (context + 1)} or training.context smaller"
        )
    return Data(train=train, test=test, inputs=(context,), outputs=VOCABULARY)


def cached_text(text_bytes: int) -> Path:
    """File with the text, written if it does not exist."""
    name = f"stdlib-{platform.python_version()}-{text_bytes}.txt"
    problem = None
    for directory in _cache_directories():
        path = directory / name
        if _is_whole(path, text_bytes):
            return path
        try:
            _write(path, text_bytes)
        except OSError as error:
            problem = error
        else:
            return path
    raise ConfigError(f"training.data: 'stdlib': its text cannot be cached: {problem}; set XDG_CACHE_HOME") from problem


def _cache_directories() -> Iterator[Path]:
    yield Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "ringwide")
    yield Path(tempfile.gettempdir(), f"ringwide-{os.getuid()}")


def _is_whole(path: Path, text_bytes: int) -> bool:
    try:
        size = path.stat().st_size
    except OSError:
        return False
    return size == text_bytes or 0 < size == min(text_bytes, sum(file.stat().st_size for file in sources()))


def _write(path: Path, text_bytes: int) -> None:
    """Write the file atomically: other nodes may write it at the same time, or read it already."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        try:
            for text in _texts(text_bytes):
                file.write(text)
            file.close()
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise


def _texts(text_bytes: int) -> Iterator[bytes]:
    left = text_bytes
    for path in sources():
        text = path.read_bytes()[:left].translate(ASCII_ONLY)
        left -= len(text)
        yield text
        if not left:
            return
    if left == text_bytes:
        raise ConfigError(f"training.data: 'stdlib': this Python has no sources in {_library()}")


def sources() -> list[Path]:
    """Source files in an order that mixes the packages, so that the test text is like the training text."""
    found = [path for directory, _, files in _walk() for name in files if _wanted(path := Path(directory, name))]
    return sorted(found, key=_order)


def _walk() -> Iterator[tuple[str, list[str], list[str]]]:
    for directory, inner, files in os.walk(_library()):
        inner[:] = [name for name in inner if name not in SKIPPED]
        yield directory, inner, files


def _wanted(path: Path) -> bool:
    # _sysconfigdata differs from machine to machine.
    return path.suffix == ".py" and not path.name.startswith("_sysconfigdata")


def _order(path: Path) -> tuple[int, str]:
    name = path.relative_to(_library()).as_posix()
    return zlib.crc32(name.encode()), name


def _library() -> str:
    return sysconfig.get_paths()["stdlib"]
