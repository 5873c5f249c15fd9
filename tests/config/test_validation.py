"""Blocks of settings take no true or false for a number, wherever it is written."""

from typing import Any

import pytest

from ringwide.config.document import Document
from ringwide.config.ring_config import RingConfig
from ringwide.config.validation import checked
from ringwide.errors import ConfigError
from ringwide.experiment.config import ExperimentConfig


@pytest.mark.parametrize(
    "block",
    [
        {"nodes": True},
        {"training": {"epochs": True}},
        {"training": {"batch_size": False}},
        {"training": {"learning_rate": True}},
        {"training": {"hidden_sizes": [64, True]}},
        {"training": {"class_dim": True, "model": "mine:model"}},
        {"ring": {"lanes": True}},
        {"ring": {"segment_bytes": True}},
        {"ring": {"collective_timeout_seconds": True}},
        {"checkpoint": {"every_steps": True}},
    ],
    ids=str,
)
def test_what_yaml_reads_as_true_is_no_number(block: dict[str, Any], tmp_path: Any) -> None:
    document = Document(tmp_path, {"name": "x", "nodes": 2, **block}, {})
    with pytest.raises(ConfigError, match="should be a number, and not true or false"):
        checked(document, ExperimentConfig)


def test_where_true_has_a_meaning_it_is_taken() -> None:
    assert RingConfig(checksum=True, messages=True, error_feedback=True).checksum is True
