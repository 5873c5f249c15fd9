import sys
from pathlib import Path

import pytest
from in_memory_ring import Meeting

from ringwide.experiment.outline import outline, plan_of
from ringwide.experiment.sweep import load_variants
from ringwide.training.loop import train

HEAD = "name: t\nnodes: 4\n"
EXPERIMENTS = {
    "plain": "",
    "clusters": "training: {model: linear, data: clusters, batch_size: 8, seconds: 30}\n",
    "adam": "training: {optimizer: adam, schedule: cosine, steps: 50, accumulate_batches: 2}\n",
    "ring": "ring: {algorithm: ring, buffer_bytes: 3000000, codec: zlib, threshold_bytes: 0}\n",
    "key": "ring: {key_file: ring.key, encrypt: true}\n",
    "tls": "ring: {tls: {cert: rank.crt, key: rank.key, ca: '~/ca.crt'}}\n",
    "keys": "sweep: {ring.key_file: [one.key, other.key]}\n",
    "beside": "report: {beside: [{name: x, memory: 700MB, loss: 2.33}], notes: 'a: b'}\ncheckpoint: {every_steps: 5}\n",
    "blocks": "sweep: {ring: [{codec: zlib, codec_level: 1, threshold_bytes: 0}, {codec: none}], nodes: [2, 3]}\n",
    "models": "sweep:\n  training:\n  - {model: cnn, channels: [4]}\n  - {model: linear, momentum: 0.5}\n",
    "optimizers": "sweep: {training.optimizer: [sgd, adamw], training.bucket_bytes: [16KiB, 4MiB]}\n",
}


def outlined(directory: Path, text: str, *overrides: str) -> str:
    path = directory / "experiment.yaml"
    path.write_text(HEAD + text, encoding="utf-8")
    return outline(load_variants(path, overrides))


@pytest.mark.parametrize("text", EXPERIMENTS.values(), ids=EXPERIMENTS)
def test_the_outline_is_an_experiment_that_loads_to_the_same(tmp_path: Path, text: str) -> None:
    (tmp_path / "outline.yaml").write_text(outlined(tmp_path, text))
    before = load_variants(tmp_path / "experiment.yaml")
    after = load_variants(tmp_path / "outline.yaml")
    assert [variant.config for variant in after] == [variant.config for variant in before]
    assert [variant.label for variant in after] == [variant.label for variant in before]


def test_defaults_are_shown_and_sizes_can_be_read(tmp_path: Path) -> None:
    lines = outlined(tmp_path, "training: {model: linear}\n").splitlines()
    assert "  buffer_bytes: 4MiB" in lines
    assert "  threshold_bytes: 512KiB" in lines
    assert "  momentum: 0.9" in lines
    assert not any("hidden_sizes" in line or "betas" in line for line in lines)  # which are for others


def test_the_plan_of_the_small_model(tmp_path: Path) -> None:
    text = outlined(tmp_path, EXPERIMENTS["clusters"], "nodes=10")
    plan = dict(line[4:].split("  ", 1) for line in text.partition("# plan\n")[2].splitlines())
    assert {name: fact.strip() for name, fact in plan.items()} == {
        "nodes": "10",
        "parameters": "1,290, 5,160 bytes of gradients",
        "buckets": "1, sent after the backward pass",
        "samples": "2,560 to train on, 512 held out",
        "samples a step": "80, 8 for each node",
        "steps an epoch": "32",
        "steps": "as many as there is time for",
        "seconds": "at most 30 of training",
        "written to": "runs/t-DATE-TIME",
    }


def test_a_model_of_ones_own_is_found_beside_the_experiment(tmp_path: Path) -> None:
    (tmp_path / "a_model_of_mine.py").write_text(
        "import torch\ndef make(inputs, width):\n    return torch.nn.Linear(inputs[0], width)\n"
    )
    searched = sys.path[:]
    text = outlined(tmp_path, "training: {model: 'a_model_of_mine:make', model_options: {width: 10}}\n")
    assert "parameters      650, 2,600 bytes of gradients" in text
    assert sys.path == searched


def test_accumulated_batches_are_one_step(tmp_path: Path) -> None:
    text = outlined(tmp_path, "training: {batch_size: 16, accumulate_batches: 4, epochs: 3}\n")
    assert "samples a step  256, 64 for each node" in text
    assert "#   steps           18\n" in text


def test_what_differs_between_variants_stands_beside_each(tmp_path: Path) -> None:
    text = outlined(
        tmp_path, "training: {seconds: 5}\nsweep: {ring.codec: [none, lz4], training.bucket_bytes: [16KiB]}\n"
    )
    assert "variants        2" in text
    assert "seconds in all  at most 10 of training" in text
    assert text.splitlines()[-2:] == [
        "#   01-codec=none,bucket_bytes=16KiB",
        "#   02-codec=lz4,bucket_bytes=16KiB",
    ]
    several = outlined(tmp_path, "training: {hidden_sizes: [128]}\nsweep: {training.bucket_bytes: [16KiB, 4MiB]}\n")
    assert "01-bucket_bytes=16KiB  buckets: 2, overlapped with the backward pass" in several
    assert "02-bucket_bytes=4MiB   buckets: 1, sent after the backward pass" in several


@pytest.mark.parametrize("more", ["", "bucket_bytes: 16KiB, accumulate_batches: 2, ", "overlap: true, "])
async def test_the_plan_is_the_one_that_a_node_tells(tmp_path: Path, more: str) -> None:
    text = f"name: t\nnodes: 1\ntraining: {{{more}steps: 1, seconds: 60}}\n"
    (tmp_path / "experiment.yaml").write_text(text)
    (variant,) = load_variants(tmp_path / "experiment.yaml")
    told: list[object] = []
    await train(Meeting(1).ring(0), variant.config.training, told.append)
    assert told[0] == plan_of(variant.config)
