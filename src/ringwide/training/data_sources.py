"""Data sources by name: clusters, digits, the text of Python's standard library, or the user's own."""

import hashlib
import os
import platform
import sysconfig
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor

from ringwide.errors import ConfigError
from ringwide.training.config import TrainingConfig
from ringwide.training.samples import Data, TensorSamples, are_classes, shuffled
from ringwide.training.user_code import call, guarded


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

    def has_target(self, value: int) -> bool:
        return 0 <= value < VOCABULARY

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


KEY = "training.data"
EXPECTED = "it should return (train, test), each (inputs, targets) as tensors or arrays, or a dataset of such pairs"
Array = Tensor | numpy.ndarray
SINGLE_PRECISION = {"float64": torch.float32, "complex128": torch.complex64}


def load_user_data(path: str, options: Mapping[str, Any]) -> Data:
    given, where = call(path, KEY, options), f"{KEY}: {path!r}"
    if isinstance(given, Data):
        if not len(given.train):
            raise ConfigError(f"{where}: train: has no samples")
        return given
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise ConfigError(f"{where}: returned {_a(given)}; {EXPECTED}")
    train, test = _samples(given[0], f"{where}: train"), _samples(given[1], f"{where}: test")
    if _shape(train) != _shape(test):
        raise ConfigError(f"{where}: a sample has shape {_shape(train)} in train, but {_shape(test)} in test")
    return Data(train=train, test=test, inputs=_shape(train), outputs=_outputs(train.labels, test.labels))


def _samples(part: object, where: str) -> TensorSamples:
    inputs, targets = _pair(part, where)
    if not inputs.dim() or not targets.dim() or len(inputs) != len(targets):
        raise ConfigError(
            f"{where}: inputs have shape {tuple(inputs.shape)} and targets {tuple(targets.shape)};"
            " they should have one row each for every sample"
        )
    if not len(inputs):
        raise ConfigError(f"{where}: has no samples")
    # torch takes classes as int64.
    return TensorSamples(inputs, targets.long() if are_classes(targets) else targets)


def _pair(part: object, where: str) -> tuple[Tensor, Tensor]:
    if isinstance(part, tuple | list) and len(part) == 2 and all(isinstance(array, Array) for array in part):
        return _converted(part[0], where), _converted(part[1], where)
    if not _is_dataset(part):
        raise ConfigError(f"{where} is {_a(part)}; {EXPECTED}")
    items = guarded(_items, where)(part)
    for index, item in enumerate(items):
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise ConfigError(f"{where}[{index}] is {_a(item)}; it should be an input and its target")
    return _stacked([item[0] for item in items], where), _stacked([item[1] for item in items], where)


def _is_dataset(part: object) -> bool:
    has_items = hasattr(part, "__len__") and hasattr(part, "__getitem__")
    return has_items and not isinstance(part, Tensor | numpy.ndarray | str | bytes | Mapping)


def _items(dataset: Any) -> list[Any]:
    """Items by index: iterating over a dataset need not end."""
    return [dataset[index] for index in range(len(dataset))]


def _stacked(values: Sequence[Any], where: str) -> Tensor:
    tensors = [_converted(value, where) for value in values]
    shapes = dict.fromkeys(tuple(tensor.shape) for tensor in tensors)
    if len(shapes) > 1:
        raise ConfigError(f"{where}: has samples of different shapes: {', '.join(map(str, list(shapes)[:3]))}")
    return torch.stack(tensors) if tensors else torch.empty(0)


def _converted(value: Any, where: str) -> Tensor:
    """Tensor of a value. Tensors keep their dtype; the double precision of numpy and Python, their default, goes."""
    if isinstance(value, Tensor):
        return value.detach().cpu()
    try:
        array = numpy.asarray(value)
        return torch.tensor(array, dtype=SINGLE_PRECISION.get(array.dtype.name))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}: is not made of numbers: {' '.join(str(error).split())}") from error


def _outputs(*targets: Tensor) -> int:
    if are_classes(targets[0]):
        return max(0, max(int(target.max()) for target in targets) + 1)  # 0: all are ignored
    return {1: 1, 2: targets[0].shape[-1]}.get(targets[0].dim(), 0)


def _shape(samples: TensorSamples) -> tuple[int, ...]:
    return tuple(samples.features.shape[1:])


def _a(value: object) -> str:
    match value:
        case None:
            return "None"
        case Tensor():
            return f"a tensor of shape {tuple(value.shape)}"
        case numpy.ndarray():
            return f"an array of shape {value.shape}"
        case tuple() | list():
            return f"a {type(value).__name__} of {len(value)}"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"
