"""The files in configs/: each loads, in every variant, and says what it is for."""

import json
from pathlib import Path

import pytest

from ringwide.experiment.config import ExperimentConfig
from ringwide.experiment.sweep import load_variants

CONFIGS = Path(__file__).parents[2] / "configs"
FILES = sorted(CONFIGS.rglob("*.yaml"))
NAMES = [path.relative_to(CONFIGS).with_suffix("").as_posix() for path in FILES]
EACH = list(zip(FILES, NAMES, strict=True))
FORERUNNERS = [path for path in FILES if path.parent.name == "forerunner"]


def test_none_is_missing() -> None:
    assert set(NAMES) >= {
        *("quickstart", "int8", "transformer", "buffers", "compression", "logging", "segments"),
        *(f"forerunner/{name}" for name in ("1-early", "2-standard", "3-adaptive", "4-enhanced", "5-lz4", "6-direct")),
    }


@pytest.mark.parametrize(("path", "name"), EACH, ids=NAMES)
def test_every_file_loads_and_can_be_cut_short(path: Path, name: str) -> None:
    variants = load_variants(path)
    assert variants[0].config.name == name.replace("/", "-")
    shorter = load_variants(path, ["nodes=2", "training.steps=3"])
    assert [variant.label for variant in shorter] == [variant.label for variant in variants]
    assert all(variant.config.nodes == 2 and variant.config.training.steps == 3 for variant in shorter)


@pytest.mark.parametrize(("path", "name"), EACH, ids=NAMES)
def test_every_file_begins_with_its_schema_its_question_and_its_command(path: Path, name: str) -> None:
    text = path.read_text()
    modeline, _, rest = text.partition("\n")
    schema = modeline.removeprefix("# yaml-language-server: $schema=")
    assert (path.parent / schema).resolve() == (CONFIGS / "schema.json").resolve()
    comment = rest.partition("\nname:")[0]
    assert "?" in comment
    assert f"#   python -m ringwide run configs/{name}.yaml\n" in comment
    assert all(line.startswith("#") for line in comment.splitlines() if line)


def test_the_schema_is_the_one_that_is_printed() -> None:
    assert json.loads((CONFIGS / "schema.json").read_text()) == ExperimentConfig.model_json_schema()


@pytest.mark.parametrize("path", FORERUNNERS, ids=lambda path: path.stem)
def test_a_generation_of_the_forerunner_has_its_workload_and_its_figures(path: Path) -> None:
    (variant,) = load_variants(path)
    config, (figures,) = variant.config, variant.config.report.beside
    assert (config.nodes, config.training.seconds) == (10, 30)
    assert (config.training.model, config.training.data, config.training.batch_size) == ("linear", "clusters", 8)
    assert figures.name.endswith(path.stem[0])
    assert None not in figures.model_dump().values()
    assert figures.batches == pytest.approx(30 * (figures.batches_per_second or 0), rel=0.01)


def test_the_best_generation_has_nothing_but_defaults() -> None:
    (variant,) = load_variants(CONFIGS / "forerunner" / "6-direct.yaml")
    assert "ring" not in variant.document


@pytest.mark.parametrize(
    ("name", "key", "values"),
    [
        ("buffers", "ring.buffer_bytes", ["1MiB", "4MiB", "8MiB", "16MiB"]),
        ("logging", "logging", ["silent", "normal", "verbose"]),
        ("segments", "ring.segment_bytes", ["64KiB", "256KiB", "512KiB", "1MiB", "2MiB", "4MiB"]),
    ],
)
def test_a_sweep_asks_the_forerunners_question(name: str, key: str, values: list[str]) -> None:
    assert [variant.changes for variant in load_variants(CONFIGS / f"{name}.yaml")] == [
        {key: value} for value in values
    ]


def test_compression_has_every_rung_of_the_ladder() -> None:
    variants = load_variants(CONFIGS / "compression.yaml")
    rungs = {(ring.codec, ring.codec_level, ring.threshold_bytes) for ring in (each.config.ring for each in variants)}
    assert rungs >= {
        ("none", None, 0),
        ("zlib", 1, 0),
        ("zlib", 9, 0),
        ("zlib", 1, 512 * 1024),
        ("zlib", 1, 1024 * 1024),
        ("lz4-frame", None, 0),
        ("lz4", None, 0),
        ("int8", None, 0),
    }
