from pathlib import Path

import pytest

from ringwide.errors import ConfigError
from ringwide.experiment.config import ExperimentConfig
from ringwide.experiment.loading import load_experiment

HEAD = "name: t\nnodes: 2\n"


def written(directory: Path, text: str) -> Path:
    path = directory / "experiment.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def mistake_in(directory: Path, text: str) -> str:
    path = written(directory, text)
    with pytest.raises(ConfigError) as caught:
        load_experiment(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    return message.removeprefix(str(path))


def test_a_whole_experiment_loads(tmp_path: Path) -> None:
    config = load_experiment(
        written(tmp_path, HEAD + "ring: {segment_bytes: 256KiB, lanes: 2}\ntraining:\n  learning_rate: 1e-3\n")
    )
    assert (config.name, config.nodes) == ("t", 2)
    assert (config.ring.segment_bytes, config.ring.lanes) == (256 * 1024, 2)
    assert config.training.learning_rate == 0.001


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            HEAD + "ring:\n  segment_byte: 1MiB\n",
            ":4: ring.segment_byte: unknown key; did you mean ring.segment_bytes?",
        ),
        ("name: t\nnods: 2\nnodes: 2\n", ":2: nods: unknown key; did you mean nodes?"),
        (HEAD + "zzz: 2\n", ":3: zzz: unknown key; the keys here are name, nodes, ring, training"),
        (HEAD + "training:\n  zzz: 2\n", ":4: training.zzz: unknown key; the keys here are model, hidden_sizes"),
        (HEAD + "ring:\n  lanes: 0\n", ":4: ring.lanes: 0: should be greater than or equal to 1"),
        (HEAD + "ring:\n  segment_bytes: 1 furlong\n", ":4: ring.segment_bytes: '1 furlong': could not interpret"),
        (HEAD + "ring:\n  segment_bytes: 1 furlong\n", "such as 1MiB"),
        (HEAD + "ring:\n  algorithm: rings\n", ":4: ring.algorithm: 'rings': should be 'auto', 'ring' or 'doubling'"),
        (HEAD + "training:\n  hidden_sizes: [8, -1]\n", ":4: training.hidden_sizes[1]: -1: should be greater"),
        (HEAD + "ring: 5\n", ":3: ring: 5: should be keys with values"),
        ("name: t\n", ":1: nodes: this key is missing; write 'nodes: ...' (How many nodes take part)"),
        ("", ":1: name: this key is missing"),
        (HEAD + "nodes: 3\n", ":3: nodes: this key is on line 2 already; keep one of the two"),
        (HEAD + "ring:\n  lanes: 1\n  lanes: 1\n", ":5: ring.lanes: this key is on line 4 already"),
        ("- a\n", ":1: the file holds a list; it should hold keys"),
        ("hello\n", ":1: the file holds only 'hello'"),
        (HEAD + "ring: [1\n", ":4: not YAML"),
        (HEAD + "ring: &a {lanes: 1}\ntraining: *a\n", ":4: *a: aliases are not understood"),
        (HEAD + "ring: &a [*a]\n", ":3: *a: aliases are not understood"),
        (HEAD + "ring: !!python/object:os.system {}\n", ":3: ring: the tag tag:yaml.org,2002:python/object:os.system"),
        (HEAD + "ring: !!python/name:os.system x\n", ":3: ring: the tag tag:yaml.org,2002:python/name:os.system"),
        ("name: 2024-99-99\nnodes: 2\n", ":1: name: '2024-99-99' cannot be read"),
        (HEAD + "? [a, b]\n: 1\n", ":3: a key is one word"),
        (HEAD + "ring: " + "[" * 5000 + "]" * 5000, ":3: more than 20 levels"),
        ("name: \x00\n", ": not YAML"),
        ("name: 5\nnodes: x\n", "(and 1 more like this)"),
    ],
)
def test_a_mistake_names_line_key_value_and_cure(tmp_path: Path, text: str, message: str) -> None:
    assert message in mistake_in(tmp_path, text)


def test_an_impossible_combination_names_its_block(tmp_path: Path) -> None:
    found = mistake_in(tmp_path, HEAD + "ring:\n  algorithm: ring\n  doubling_bytes: 64KiB\n")
    assert found == ":3: ring: doubling_bytes only matters with algorithm 'auto', not 'ring'; remove one of the two"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.yaml: the experiment cannot be read: No such file or directory"):
        load_experiment(tmp_path / "gone.yaml")


@pytest.mark.parametrize(
    "path", sorted((Path(__file__).parents[2] / "configs").glob("*.yaml")), ids=lambda path: path.stem
)
def test_our_own_experiments_are_valid(path: Path) -> None:
    config = load_experiment(path)
    assert isinstance(config, ExperimentConfig)
    assert config.name == path.stem
    assert config.nodes == 4
