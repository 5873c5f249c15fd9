"""docs/experiments.md says what the code says, and its examples work."""

import re
from pathlib import Path

import pytest

from ringwide.__main__ import main
from ringwide.config.validation import blocks
from ringwide.experiment.config import ExperimentConfig, keys_reference
from ringwide.experiment.outline import outline
from ringwide.experiment.sweep import load_variants

DOCUMENT = (Path(__file__).parents[2] / "docs" / "experiments.md").read_text()
EXAMPLES = re.findall(r"```yaml\n(.*?)```", DOCUMENT, re.DOTALL)


def test_every_key_is_in_the_reference() -> None:
    for name, model in blocks(ExperimentConfig):
        heading = f"### `{name}`\n" if name else "### The outermost keys\n"
        section = keys_reference().partition(heading)[2].partition("###")[0]
        rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+) \|$", section, re.MULTILINE)
        assert [key for key, _, _ in rows] == list(model.model_fields)


@pytest.mark.parametrize(
    "row",
    [
        "| `name` | required | Name of the experiment, used in its output and its directory. |",
        "| `buffer_bytes` | `4MiB` | Socket buffers requested, in each direction. |",
        "| `betas` | `[0.9, 0.999]` | adam, adamw: how much of the last mean and square is kept. |",
        "| `seconds` | `null` | Stop after so many seconds of training. |",
        "| `ring` | a block | How the nodes exchange gradients. Its keys are below. |",
        '| `notes` | `""` | A paragraph for the reader of the report. |',
    ],
)
def test_a_default_is_shown_as_one_would_write_it(row: str) -> None:
    assert row in keys_reference().splitlines()


def test_the_reference_is_in_the_documents(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "keys"]) == 0
    printed = capsys.readouterr().out
    assert printed == f"{keys_reference()}\n"
    assert DOCUMENT.endswith(printed)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.splitlines()[0].removeprefix("name: "))
def test_every_example_loads(example: str, tmp_path: Path) -> None:
    (tmp_path / "example.yaml").write_text(example)
    assert load_variants(tmp_path / "example.yaml")


def test_the_example_of_a_model_and_data_of_ones_own_works(tmp_path: Path) -> None:
    (module,) = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)
    (experiment,) = [example for example in EXAMPLES if "mine:model" in example]
    (tmp_path / "mine.py").write_text(module)
    (tmp_path / "mine.yaml").write_text(experiment)
    text = outline(load_variants(tmp_path / "mine.yaml"))
    assert "parameters      322, 1,288 bytes of gradients" in text
    assert "samples         1,600 to train on, 400 held out" in text
