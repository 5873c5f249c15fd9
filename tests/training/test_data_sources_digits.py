import importlib.util
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
import torch

from ringwide.errors import ConfigError
from ringwide.training.data_sources import digits
from ringwide.training.samples import TensorSamples


def test_digits_are_scaled_and_the_test_samples_are_held_out() -> None:
    data = digits()
    assert isinstance(data.train, TensorSamples)
    assert isinstance(data.test, TensorSamples)
    assert (data.inputs, data.outputs) == ((64,), 10)
    assert (len(data.train), len(data.test)) == (1438, 359)
    assert float(data.train.features.min()) == 0.0
    assert float(data.train.features.max()) == 1.0
    assert data.train.features.dtype == torch.float32
    # Together they are the whole set: a sample in both would be counted twice.
    assert int(torch.cat([data.train.labels, data.test.labels]).bincount().sum()) == 1797
    rows = {tuple(row) for row in torch.cat([data.train.features, data.test.features]).tolist()}
    assert len(rows) == 1797


def test_what_is_read_from_the_file_is_what_scikit_learn_loads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    quickly = digits().fingerprint()
    elsewhere = ModuleSpec("sklearn", None, is_package=True)
    elsewhere.submodule_search_locations = [str(tmp_path)]
    # Scikit-learn itself asks for other modules with the same function.
    find = importlib.util.find_spec
    monkeypatch.setattr(
        "ringwide.training.data_sources.find_spec", lambda name: elsewhere if name == "sklearn" else find(name)
    )
    assert digits().fingerprint() == quickly


def test_without_scikit_learn_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ringwide.training.data_sources.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"pip install 'ringwide\[experiments\]'"):
        digits()
