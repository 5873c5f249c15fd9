from pathlib import Path
from typing import Any

import pytest

from ringwide.errors import ConfigError
from ringwide.experiment.config import load_experiment

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
        (
            HEAD + "ring:\n  algorithm: rings\n",
            ":4: ring.algorithm: 'rings': should be 'auto', 'ring' or 'tree'",
        ),
        (HEAD + "training:\n  hidden_sizes: [8, -1]\n", ":4: training.hidden_sizes[1]: -1: should be greater"),
        (HEAD + "ring: 5\n", ":3: ring: 5: should be keys with values"),
        ("name: t\n", ":1: nodes: this key is missing; write 'nodes: ...' (How many nodes take part)"),
        ("", ":1: name: this key is missing"),
        (HEAD + "nodes: 3\n", ":3: nodes: this key is on line 2 already; keep one of the two"),
        (HEAD + "ring:\n  lanes: 1\n  lanes: 1\n", ":5: ring.lanes: this key is on line 4 already"),
        ("- a\n", ":1: the file holds a list; it should hold keys"),
        ("hello\n", ":1: the file holds only 'hello'"),
        (HEAD + "ring: [1\n", ":4: not YAML"),
        (HEAD + "ring: &a {lanes: 1}\ntraining: *a\n", ":4: *a: aliases are not supported"),
        (HEAD + "ring: &a [*a]\n", ":3: *a: aliases are not supported"),
        (HEAD + "ring: !!python/object:os.system {}\n", ":3: ring: the tag tag:yaml.org,2002:python/object:os.system"),
        (HEAD + "ring: !!python/name:os.system x\n", ":3: ring: the tag tag:yaml.org,2002:python/name:os.system"),
        ("name: 2024-99-99\nnodes: 2\n", ":1: name: '2024-99-99' cannot be read"),
        (HEAD + "? [a, b]\n: 1\n", ":3: a key is one word"),
        (HEAD + "ring: " + "[" * 5000 + "]" * 5000, ":3: more than 20 levels"),
        ("name: \x00\n", ": not YAML"),
        ("name: 5\nnodes: x\n", "(and 1 more like this)"),
        (
            HEAD + "training:\n  overlap: sometimes\n",
            ":4: training.overlap: 'sometimes': should be 'auto' or true or false",
        ),
        (
            HEAD + "ring:\n  threshold_bytes: never\n",
            ":4: ring.threshold_bytes: 'never': should be auto or a size such as 512KiB",
        ),
        (
            HEAD + "training:\n  optimizer: adam\n  betas: [0.9]\n",
            ":5: training.betas: [0.9]: entry 2 is missing",
        ),
        (
            HEAD + "training:\n  optimizer: adam\n  betas: [0.9, 0.9, 0.9]\n",
            ":5: training.betas: [0.9, 0.9, 0.9]: has 3 entries, and may have 2",
        ),
        (
            HEAD + "training:\n  model: cnn\n  channels: []\n",
            ":5: training.channels: []: has 0 of at least 1 entries",
        ),
        (HEAD + "training:\n  hidden_sizes: 5\n", ":4: training.hidden_sizes: 5: should be a list, as in [1, 2]"),
        (HEAD + "training:\n  model: mpl\n", ":4: training.model: 'mpl': should be linear, mlp, cnn, transformer, or"),
        (HEAD + "ring:\n  allow_lossy: perhaps\n", ":4: ring.allow_lossy: 'perhaps': should be true or false"),
        (HEAD + "ring:\n", ":3: ring: null: should be keys with values"),
        ("name: a/b\nnodes: 2\n", ":1: name: 'a/b': should be letters, digits, spaces and any of _ . , = -"),
        ("name: 5\nnodes: 2\n", ":1: name: 5: should be text; quote it if it is"),
        (HEAD + f"nods: [{'1, ' * 500}]\n", ":3: nods: unknown key"),
        (HEAD + "buffer_bytes: 1MiB\n", ":3: buffer_bytes: unknown key; did you mean ring.buffer_bytes?"),
        (
            HEAD + "report:\n  beside:\n  - name: x\n    batchs: 1\n",
            ":6: report.beside[0].batchs: unknown key; did you mean report.beside[0].batches?",
        ),
        (HEAD + "report:\n  beside:\n  - batches: 1\n", ":5: report.beside[0].name: this key is missing; write 'name"),
        (HEAD + "sweep:\n  ring.codec: none\n", ":4: sweep.ring.codec: 'none': should be a list"),
    ],
)
def test_a_mistake_names_line_key_value_and_cure(tmp_path: Path, text: str, message: str) -> None:
    assert message in mistake_in(tmp_path, text)


def test_an_impossible_combination_names_its_block(tmp_path: Path) -> None:
    found = mistake_in(tmp_path, HEAD + "ring:\n  algorithm: ring\n  tree_bytes: 64KiB\n")
    assert found == ":3: ring: tree_bytes only matters with algorithm 'auto', not 'ring'; remove one of the two"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.yaml: the experiment cannot be read: No such file or directory"):
        load_experiment(tmp_path / "gone.yaml")


def test_a_long_value_is_cut_short(tmp_path: Path) -> None:
    found = mistake_in(tmp_path, HEAD + f"training:\n  batch_size: [{'1, ' * 500}]\n")
    assert found.startswith(":4: training.batch_size: [1, 1, ")
    assert len(found) < 250


# What --set does


@pytest.mark.parametrize(
    ("override", "changed"),
    [
        ("nodes=3", {"nodes": 3}),
        ("ring.buffer_bytes=8MiB", {"ring": {"buffer_bytes": 8 * 1024**2}}),
        (" ring.lanes = 2 ", {"ring": {"lanes": 2}}),
        ("training.hidden_sizes=[8, 4]", {"training": {"hidden_sizes": (8, 4)}}),
        ("training={learning_rate: 1e-3}", {"training": {"learning_rate": 0.001, "seed": 0}}),
        ("training.epochs=", {"training": {"epochs": None, "seed": 7}}),
        ("training.epochs=null", {"training": {"epochs": None}}),
        ("report.notes=a=b", {"report": {"notes": "a=b"}}),
        ("report.notes='a: b'", {"report": {"notes": "a: b"}}),
        ("sweep.ring.codec=[none, lz4]", {"sweep": {"ring.codec": ["none", "lz4"]}}),
        ("sweep={}", {"sweep": {}}),
    ],
)
def test_a_key_can_be_set(tmp_path: Path, override: str, changed: dict[str, Any]) -> None:
    path = written(tmp_path, HEAD + "training: {seed: 7, epochs: 2}\nsweep: {nodes: [1, 2]}\n")
    config = load_experiment(path, [override])
    for key, value in changed.items():
        if not isinstance(value, dict):
            assert getattr(config, key) == value
        elif key == "sweep":
            assert config.sweep == ({"nodes": [1, 2]} | value if value else {})
        else:
            for below, expected in value.items():
                assert getattr(getattr(config, key), below) == expected


def test_of_two_values_for_a_key_the_last_one_counts(tmp_path: Path) -> None:
    assert load_experiment(written(tmp_path, HEAD), ["nodes=3", "nodes=5"]).nodes == 5


EXAMPLE = "write --set KEY=VALUE, as in --set ring.buffer_bytes=8MiB"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("ring.bufer_bytes=8MiB", "ring.bufer_bytes: unknown key; did you mean ring.buffer_bytes?"),
        ("rnig.lanes=2", "rnig: unknown key; did you mean ring?"),
        ("lanes=2", "lanes: unknown key; did you mean ring.lanes?"),
        ("ring.lanes=0", "ring.lanes: 0: should be greater than or equal to 1"),
        ("ring={lanes: 0}", "ring.lanes: 0: should be greater than or equal to 1"),
        ("foo", f"there is no value; {EXAMPLE}"),
        ("=5", f"there is no key before the = or next to a dot; {EXAMPLE}"),
        ("ring..lanes=2", f"there is no key before the = or next to a dot; {EXAMPLE}"),
        (".ring=2", f"there is no key before the = or next to a dot; {EXAMPLE}"),
        ("sweep.=2", f"there is no key before the = or next to a dot; {EXAMPLE}"),
        ("nodes.x=1", "nodes: 2 has no keys below it; set nodes itself"),
        ("ring=[1", "not YAML: expected ',' or ']', but got '<stream end>'"),
        ("ring=!!python/name:os.system x", "ring: the tag tag:yaml.org,2002:python/name:os.system is not allowed"),
        ("ring.lanes=*a", "*a: aliases are not supported"),
        ("ring.codec=int8", "ring: codec 'int8' loses precision"),
        ("training.model=cnn", "training: hidden_sizes belongs to model 'mlp'; remove it"),
    ],
)
def test_a_mistake_on_the_command_line_names_what_was_typed(tmp_path: Path, override: str, message: str) -> None:
    path = written(tmp_path, HEAD + "training:\n  hidden_sizes: [8]\n")
    with pytest.raises(ConfigError) as caught:
        load_experiment(path, [override])
    assert str(caught.value).startswith(f"--set {override}: {message}")
    assert "\n" not in str(caught.value)


def test_a_mistake_of_the_file_is_not_blamed_on_the_command_line(tmp_path: Path) -> None:
    path = written(tmp_path, HEAD + "ring:\n  codec: int8\n")
    with pytest.raises(ConfigError, match=r"^\S+experiment\.yaml:3: ring: codec 'int8' loses precision"):
        load_experiment(path, ["ring.lanes=2"])


def test_of_several_settings_the_guilty_one_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^--set ring\.codec=int8: ring: codec"):
        load_experiment(written(tmp_path, HEAD), ["ring.lanes=2", "ring.codec=int8"])


def test_settings_that_are_wrong_only_together_are_all_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^--set ring\.codec=lz4 and --set ring\.algorithm=tree: ring: algorithm"):
        load_experiment(written(tmp_path, HEAD), ["ring.codec=lz4", "ring.algorithm=tree"])


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        (
            "schedule: cosine, warmup_steps: 20, decay_steps: 10",
            "decay_steps 10 is not after warmup_steps 20: both count from the first step, and the learning rate cannot"
            " have decayed before it has risen; make decay_steps larger than 20 or warmup_steps smaller than 10",
        ),
        ("schedule: linear, warmup_steps: 10, decay_steps: 10", "decay_steps 10 is not after warmup_steps 10: both"),
        ("loss: mse, label_smoothing: 0.1", "label_smoothing belongs to loss 'cross_entropy'; remove it"),
        ("loss: mse, class_weights: [1, 2]", "class_weights belongs to loss 'cross_entropy'; remove it"),
        ("class_weights: [0, 0]", "class_weights are all 0, so no target would count; make at least one larger"),
        ("class_weights: [0, 1], label_smoothing: 0.1", "label_smoothing 0.1 spreads every target over all classes"),
        ("class_dim: 1", "class_dim belongs to a model of your own with loss 'cross_entropy'; remove it"),
    ],
)
def test_training_that_would_not_be_what_it_says_is_refused(tmp_path: Path, keys: str, told: str) -> None:
    path = written(tmp_path, f"{HEAD}training: {{{keys}}}\n")
    with pytest.raises(ConfigError) as caught:
        load_experiment(path)
    assert str(caught.value).startswith(f"{path}:3: training: {told}")


@pytest.mark.parametrize(
    "keys",
    [
        "schedule: cosine, warmup_steps: 9, decay_steps: 10",
        "schedule: linear, decay_steps: 1",
        "warmup_steps: 20, steps: 10",
        "class_weights: [0, 1]",
        "model: own:model, class_dim: -1",
        "clip_norm: 1",
    ],
)
def test_training_that_can_be_done_is_taken(tmp_path: Path, keys: str) -> None:
    load_experiment(written(tmp_path, f"{HEAD}training: {{{keys}}}\n"))


@pytest.mark.parametrize("value", ["0", "-1", ".nan", ".inf", "no"])
def test_gradients_are_clipped_to_a_positive_number(tmp_path: Path, value: str) -> None:
    with pytest.raises(ConfigError, match=r"training\.clip_norm"):
        load_experiment(written(tmp_path, f"{HEAD}training: {{clip_norm: {value}}}\n"))
