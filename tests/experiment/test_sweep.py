from pathlib import Path
from typing import Any

import pytest
import yaml

from ringwide.errors import ConfigError
from ringwide.experiment.config import load_experiment
from ringwide.experiment.sweep import load_variants, write_document

HEAD = "name: t\nnodes: 2\n"


def written(directory: Path, text: str) -> Path:
    path = directory / "experiment.yaml"
    path.write_text(HEAD + text, encoding="utf-8")
    return path


def labels(directory: Path, text: str, *overrides: str) -> list[str]:
    return [variant.label for variant in load_variants(written(directory, text), overrides)]


def mistake_in(directory: Path, text: str, *overrides: str) -> str:
    path = written(directory, text)
    with pytest.raises(ConfigError) as caught:
        load_variants(path, overrides)
    message = str(caught.value)
    assert "\n" not in message
    return message.removeprefix(str(path))


def test_without_a_sweep_there_is_one_variant(tmp_path: Path) -> None:
    (variant,) = load_variants(written(tmp_path, "ring: {lanes: 2}\n"), ["nodes=3"])
    assert (variant.label, variant.slug, variant.changes) == ("", "", {})
    assert variant.document == {"name": "t", "nodes": 3, "ring": {"lanes": 2}}
    assert (variant.config.nodes, variant.config.ring.lanes) == (3, 2)


def test_a_sweep_is_a_grid_whose_last_key_changes_fastest(tmp_path: Path) -> None:
    variants = load_variants(written(tmp_path, "sweep:\n  ring.codec: [none, lz4]\n  nodes: [2, 3, 4]\n"))
    assert [(variant.config.ring.codec, variant.config.nodes) for variant in variants] == [
        ("none", 2),
        ("none", 3),
        ("none", 4),
        ("lz4", 2),
        ("lz4", 3),
        ("lz4", 4),
    ]
    assert [variant.label for variant in variants][:2] == ["codec=none, nodes=2", "codec=none, nodes=3"]
    assert [variant.slug for variant in variants][:2] == ["01-codec=none,nodes=2", "02-codec=none,nodes=3"]
    assert variants[4].changes == {"ring.codec": "lz4", "nodes": 3}
    assert all(variant.config.sweep == {} and "sweep" not in variant.document for variant in variants)


def test_a_block_is_merged_over_the_one_that_is_there(tmp_path: Path) -> None:
    text = "ring: {lanes: 2, codec: lz4}\nsweep:\n  ring:\n  - {codec: zlib, codec_level: 1}\n  - {}\n  - {lanes: 1}\n"
    variants = load_variants(written(tmp_path, text))
    assert [variant.document["ring"] for variant in variants] == [
        {"lanes": 2, "codec": "zlib", "codec_level": 1},
        {"lanes": 2, "codec": "lz4"},
        {"lanes": 1, "codec": "lz4"},
    ]
    assert [variant.label for variant in variants] == ["codec=zlib, codec_level=1", "ring as it is", "lanes=1"]


def test_variants_may_have_other_keys_than_their_base(tmp_path: Path) -> None:
    text = "sweep:\n  training:\n  - {model: cnn, channels: [4]}\n  - {model: linear, data: clusters}\n"
    assert labels(tmp_path, text) == ["model=cnn, channels=[4]", "model=linear, data=clusters"]


def test_what_the_base_lacks_may_come_from_the_sweep(tmp_path: Path) -> None:
    path = tmp_path / "experiment.yaml"
    path.write_text("name: t\nsweep: {nodes: [2, 3]}\n")
    assert [variant.config.nodes for variant in load_variants(path)] == [2, 3]


def test_keys_with_the_same_last_word_are_written_out(tmp_path: Path) -> None:
    text = (
        "training: {model: 'm:f', data: 'm:g'}\n"
        "sweep:\n  training.model_options.size: [1]\n  training.data_options.size: [2]\n"
    )
    assert labels(tmp_path, text) == ["training.model_options.size=1, training.data_options.size=2"]


def test_labels_are_never_the_same(tmp_path: Path) -> None:
    assert labels(tmp_path, "sweep: {nodes: [2, '2']}\n") == ["nodes=2 (1)", "nodes=2 (2)"]


def test_every_kind_of_value_has_a_plain_label(tmp_path: Path) -> None:
    text = (
        "sweep:\n  training.steps: [null, 5]\n  training.hidden_sizes: [[8, 4], []]\n  training.overlap: [true, auto]\n"
    )
    assert labels(tmp_path, text)[:2] == [
        "steps=null, hidden_sizes=[8,4], overlap=true",
        "steps=null, hidden_sizes=[8,4], overlap=auto",
    ]


def test_a_slug_is_a_good_name_for_a_directory(tmp_path: Path) -> None:
    text = f"training: {{data: 'm:f'}}\nsweep:\n  training.data_options:\n  - path: '../../a b/{'c' * 500}'\n"
    (variant,) = load_variants(written(tmp_path, text))
    assert variant.slug.startswith("01-path=..-..-a-b-ccc")
    assert "/" not in variant.slug
    assert len(variant.slug) < 100


def test_many_variants_sort_in_the_order_in_which_they_run(tmp_path: Path) -> None:
    variants = load_variants(written(tmp_path, f"sweep: {{training.seed: {list(range(120))}}}\n"))
    slugs = [variant.slug for variant in variants]
    assert slugs == sorted(slugs)
    assert slugs[0] == "001-seed=0"


# Mistakes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sweep:\n  ring.codec:\n  - none\n  - lz5\n", ":6: sweep: ring.codec: 'lz5': 'lz5' is not a codec"),
        (
            "sweep:\n  ring.lanes: [1, 2]\n  ring.codec: [none, int8]\n",
            ":5: sweep: ring.codec=int8: ring: codec 'int8'",
        ),
        (
            "sweep:\n  ring:\n  - codec: lz4\n    codek: 1\n",
            ":6: sweep: ring.codek: unknown key; did you mean ring.codec?",
        ),
        ("sweep:\n  ring: [4]\n", ":4: sweep: ring: 4: should be keys with values"),
        ("sweep:\n  nodes: [2, x]\n", ":4: sweep: nodes: 'x': should be a valid integer"),
        ("sweep:\n  ring.codek: [1]\n", ":4: sweep.ring.codek: unknown key; did you mean ring.codec?"),
        ("sweep:\n  codec: [none]\n", ":4: sweep.codec: unknown key; did you mean ring.codec?"),
        (
            "sweep:\n  training.model.x: [1]\n",
            ":4: sweep.training.model.x: unknown key; training.model has no keys below",
        ),
        (
            "sweep:\n  ring: {codec: [lz4]}\n",
            ":4: sweep.ring: {'codec': ['lz4']}: should be a list of values, as in 'ring.c",
        ),
        ("sweep:\n  ring.codec: []\n", ":4: sweep.ring.codec: the list is empty, so nothing would run"),
        (
            "sweep:\n  nodes: [2, 3, 2]\n",
            ":4: sweep.nodes: 2 is given twice; to run the same again, sweep training.seed",
        ),
        ("sweep:\n  sweep: [1]\n", ":4: sweep.sweep: sweep cannot be swept: a sweep cannot hold another"),
        ("sweep:\n  name: [a]\n", ":4: sweep.name: name cannot be swept: all variants have one name"),
        ("sweep:\n  report: [{}]\n", ":4: sweep.report: report cannot be swept: there is one report"),
        ("sweep:\n  report.html: [true]\n", ":4: sweep.report.html: report.html cannot be swept"),
        (
            "sweep:\n  checkpoint:\n  - keep: 1\n  - keep: 2\n    directory: x\n",
            ":7: sweep.checkpoint: checkpoint.directory cannot be swept: variants would replace each other",
        ),
        ("checkpoint:\n  directory: x\nsweep:\n  nodes: [2]\n", ":4: checkpoint.directory: variants would replace"),
        (
            "sweep:\n  ring: [{codec: lz4}]\n  ring.codec: [none]\n",
            ":5: sweep.ring.codec: sets ring.codec, and so does ring",
        ),
        ("sweep: 5\n", ":3: sweep: should be keys, each with a list of values, as in 'ring.codec: [none, lz4]'"),
        ("sweep:\n", ":3: sweep: should be keys"),
        ("training: {seed: -1}\nsweep:\n  nodes: [2]\n", ":3: training.seed: -1: should be greater"),
        ("ring:\n  codec: int8\nsweep:\n  ring.lanes: [2]\n", ":3: ring: codec 'int8' loses precision"),
        ("ring: 5\nsweep:\n  ring.lanes: [2]\n", ":5: sweep: ring: 5 has no keys below it"),
        (
            f"sweep:\n  nodes: {list(range(1, 41))}\n  training.seed: {list(range(26))}\n",
            ":3: sweep: these are 1,040 variants; at most 1,000 can be run",
        ),
    ],
)
def test_a_mistake_names_the_line_of_its_value(tmp_path: Path, text: str, message: str) -> None:
    assert mistake_in(tmp_path, text).startswith(message)


def test_a_sweep_can_be_changed_by_the_command_line(tmp_path: Path) -> None:
    text = "sweep:\n  ring.codec: [none, lz4]\n  nodes: [2, 3]\n"
    assert labels(tmp_path, text, "sweep.ring.codec=[zlib]", "sweep.nodes=[4]") == ["codec=zlib, nodes=4"]
    assert labels(tmp_path, text, "sweep={}", "ring.codec=zlib") == [""]
    assert labels(tmp_path, text, "training.steps=3", "ring.lanes=2")[0] == "codec=none, nodes=2"


@pytest.mark.parametrize("sweep", ["ring.codec: [none, lz4]", "ring: [{codec: lz4}, {lanes: 2}]"])
def test_what_a_sweep_would_undo_is_refused(tmp_path: Path, sweep: str) -> None:
    key = sweep.partition(":")[0]
    assert mistake_in(tmp_path, f"sweep:\n  {sweep}\n", "ring.codec=zlib") == (
        f"--set ring.codec=zlib: the sweep sets ring.codec; change that, as in --set sweep.{key}=[...]"
    )


def test_a_mistake_of_the_command_line_is_not_blamed_on_the_sweep(tmp_path: Path) -> None:
    found = mistake_in(tmp_path, "sweep:\n  ring.lanes: [2]\n", "ring.codec=int8")
    assert found.startswith("--set ring.codec=int8: ring: codec 'int8' loses precision")


def test_a_sweep_of_the_command_line_is_named_in_its_mistakes(tmp_path: Path) -> None:
    found = mistake_in(tmp_path, "", "sweep.nodes=[2, x]")
    assert found.startswith("--set sweep.nodes=[2, x]: sweep: nodes: 'x': should be a valid integer")


# Writing


@pytest.mark.parametrize(
    "document",
    [
        {"name": "t", "nodes": 2},
        {"name": "on", "nodes": 2, "ring": {"buffer_bytes": "8MiB"}, "training": {"learning_rate": "1e-3"}},
        {"name": "1e3", "nodes": 2, "report": {"notes": "two\nlines: 'é' # no comment " + "x " * 100}},
        {"name": "t", "nodes": 2, "training": {"data": "m:f", "data_options": {"yes": [True, None, {"a": [[1], {}]}]}}},
        {"name": "t", "nodes": 2, "report": {"beside": [{"name": "1", "loss": 1e-07}]}},
    ],
)
def test_what_is_written_loads_to_the_same(tmp_path: Path, document: dict[str, Any]) -> None:
    path = tmp_path / "written.yaml"
    write_document(path, document)
    (variant,) = load_variants(path)
    assert variant.document == document
    assert load_experiment(path) == variant.config


def test_what_occurs_twice_is_written_twice(tmp_path: Path) -> None:
    """As PyYAML would make an alias of it, which is refused when it is read."""
    same = [{"name": "x"}]
    path = tmp_path / "written.yaml"
    document = {"name": "t", "nodes": 2, "report": {"beside": [same[0], same[0]]}}
    write_document(path, document)
    assert load_variants(path)[0].document == document
    assert yaml.safe_load(path.read_text()) == document
