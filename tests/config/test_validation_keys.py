import pytest

from ringwide.config.validation import blocks, cure_for_unknown, unknown_part, without_branches
from ringwide.config.yaml_text import KeyPath
from ringwide.experiment.config import ExperimentConfig


def test_every_block_has_its_name() -> None:
    assert [name for name, _ in blocks(ExperimentConfig)] == [
        "",
        "ring",
        "ring.tls",
        "training",
        "checkpoint",
        "report",
        "report.beside[]",
    ]


@pytest.mark.parametrize(
    ("key_path", "unknown"),
    [
        (("nodes",), None),
        (("ring",), None),
        (("ring", "codec"), None),
        (("training", "model_options", "anything", "at", "all"), None),
        (("sweep", "ring.codec"), None),
        (("nods",), ("nods",)),
        (("ring", "codek", "x"), ("ring", "codek")),
        (("nodes", "x", "y"), ("nodes", "x")),
    ],
)
def test_a_path_is_known_up_to_its_first_unknown_key(key_path: KeyPath, unknown: KeyPath | None) -> None:
    assert unknown_part(key_path, ExperimentConfig) == unknown


def test_the_types_that_were_tried_are_no_part_of_a_path() -> None:
    tried: KeyPath = ("training", "overlap", "literal['auto']")
    assert without_branches(tried, ExperimentConfig) == ("training", "overlap")
    assert without_branches(("training", "hidden_sizes", 1), ExperimentConfig) == ("training", "hidden_sizes", 1)
    assert without_branches(("report", "beside", 0, "memory"), ExperimentConfig) == ("report", "beside", 0, "memory")


@pytest.mark.parametrize(
    ("key_path", "cure"),
    [
        (("ring", "lane"), "did you mean ring.lanes?"),
        (("training", "segment_bytes"), "did you mean ring.segment_bytes?"),
        (("checkpoint", "zzz"), "the keys here are every_steps, keep, directory"),
        (("nodes", "x"), "nodes has no keys below it"),
    ],
)
def test_an_unknown_key_has_a_cure(key_path: KeyPath, cure: str) -> None:
    assert cure_for_unknown(key_path, ExperimentConfig) == cure
