"""Codecs between real processes."""

import signal
from typing import Any

import pytest

from system import acts, codecs
from system.fleet import Fleet

pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]

ALWAYS: dict[str, Any] = {"threshold_bytes": 0, "segment_bytes": "16KiB"}
LOSSLESS: list[dict[str, Any]] = [
    {"codec": "lz4"},
    {"codec": "lz4", "codec_shuffle": True},
    {"codec": "lz4-frame"},
    {"codec": "zlib"},
]
LOSSY: list[dict[str, Any]] = [
    *({"codec": name, "allow_lossy": True} for name in ("bf16", "fp16", "int8", "topk")),
    {"codec": "auto", "allow_lossy": True},
]
RAW = {"algorithm": "ring", "segment_bytes": "16KiB"}
CODECS = LOSSLESS + LOSSY


@pytest.mark.parametrize(
    ("size", "threads", "kinds"),
    [  # what more processes would only repeat takes its time
        (2, [0, 2], ["float32", "float64", "int32", "sparse", "bfloat16"]),
        (3, [0, 2], ["float32", "float64", "int32", "sparse"]),
        (4, [2], ["float32", "float64", "int32", "sparse"]),
        (8, [0], ["float32", "int32", "sparse"]),
    ],
)
def test_every_codec_keeps_its_promise_with_the_same_bits_on_every_rank(
    size: int, threads: list[int], kinds: list[str]
) -> None:
    configs = [RAW, *({**ALWAYS, **codec, "codec_threads": count} for count in threads for codec in CODECS)]
    with Fleet(codecs.try_codecs, size=size, rings=len(configs), configs=configs, kinds=kinds) as fleet:
        by_rank = fleet.results(seconds=300)
    raw_digests = by_rank[0][0]["digests"]
    for config, *findings in zip(configs, *by_rank, strict=True):
        assert [found["wrong"] for found in findings] == [[]] * size, config
        assert all(found["digests"] == findings[0]["digests"] for found in findings), f"other bits: {config}"
        assert all(is_used(config, found["used"]) for found in findings), f"{config}: {findings[0]['used']}"
        if not config.get("allow_lossy"):
            assert findings[0]["digests"] == raw_digests, f"{config} has lost something"


def is_used(config: dict[str, Any], used: list[str]) -> bool:
    """`auto` finds for itself what pays, perhaps nothing."""
    name = config.get("codec", "none") + ("+shuffle" if "codec_shuffle" in config else "")
    return name == "auto" or name in used


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("codec", [{"codec": "int8", "allow_lossy": True}, {"codec": "lz4", "codec_shuffle": True}])
def test_a_rank_that_is_killed_while_codecs_are_at_work_is_named(codec: dict[str, Any], threads: int) -> None:
    settings = {**codec, "threshold_bytes": 0, "codec_threads": threads}
    with Fleet(acts.lose_a_rank, size=3, victim=1, megabytes=32, settings=settings) as fleet:
        outcomes = fleet.outcomes(seconds=300)
    assert outcomes[1].exit_code == -signal.SIGKILL
    for outcome in (outcomes[0], outcomes[2]):
        assert outcome.exit_code == 0, outcome.complaints
        assert outcome.result == {"kind": "PeerLost", "lost": 1, "intact": True}
