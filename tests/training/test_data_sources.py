from pathlib import Path

import pytest

from ringwide.training.config import TrainingConfig
from ringwide.training.data_sources import load_data


@pytest.mark.parametrize(
    ("settings", "shape"),
    [
        ({"data": "clusters"}, ((128,), 10)),
        ({"data": "digits"}, ((64,), 10)),
        ({"data": "stdlib", "model": "transformer", "context": 32, "text_bytes": 9000}, ((32,), 128)),
        ({"data": "mine_to_load:pairs", "data_options": {"width": 7}}, ((7,), 3)),
    ],
)
def test_what_is_asked_for_is_loaded(
    settings: dict[str, object], shape: tuple[tuple[int, ...], int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    Path(tmp_path, "mine_to_load.py").write_text(
        "import torch\ndef pairs(width):\n  pair = torch.zeros(3, width), torch.arange(3)\n  return pair, pair\n"
    )
    data = load_data(TrainingConfig.model_validate(settings))
    assert (data.inputs, data.outputs) == shape
    assert len(data.train) >= len(data.test) > 0
