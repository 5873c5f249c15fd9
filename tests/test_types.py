"""The public face as a type checker sees it: mistakes are errors, and results have the types of what was given."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from ringwide.config import CodecName, RingArguments
from ringwide.config.ring_config import CODECS, RingConfig
from ringwide.tensors.arithmetic import FOR_INTEGERS, OPERATIONS, OpName

ROOT = Path(__file__).parent.parent

PROGRAM = """
from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray

import ringwide

Floats = NDArray[np.float32]


async def use(ring: ringwide.Ring, x: Floats, y: NDArray[np.float64], op: ringwide.OpName) -> None:
    assert_type(await ring.allreduce(x), Floats)
    assert_type(await ring.allreduce({"x": x}, op="sum"), dict[str, Floats])
    assert_type(await ring.reduce([x], 0, op), list[Floats])
    assert_type(await ring.broadcast((x, y)), tuple[Floats, NDArray[np.float64]])
    assert_type(await ring.all_gather(x), list[Floats])
    assert_type(await ring.all_gather(x, y), NDArray[np.float64])
    assert_type(await ring.all_gather(x, into=y, channel="c"), NDArray[np.float64])
    assert_type(await ring.reduce_scatter(x), Floats)
    assert_type(await ring.reduce_scatter(x, into=y), NDArray[np.float64])
    assert_type(await ring.reduce_scatter(x, "sum", y), NDArray[np.float64])
    assert_type(await ring.receive(x), int)
    await ring.allreduce(x, op="avg")  # error: arg-type
    await ring.reduce(x, op="avg")  # error: arg-type
    await ring.reduce_scatter(x, op="avg")  # error: call-overload
    await ring.reduce(x, root="0")  # error: arg-type
    (await ring.all_gather(x)).shape  # error: attr-defined


def use_blocking(ring: ringwide.BlockingRing, x: Floats, y: NDArray[np.float64]) -> None:
    assert_type(ring.allreduce({"x": x}), dict[str, Floats])
    assert_type(ring.all_gather(x), list[Floats])
    assert_type(ring.all_gather(x, into=y), NDArray[np.float64])
    assert_type(ring.reduce_scatter(x), Floats)
    assert_type(ring.reduce_scatter(x, into=y), NDArray[np.float64])
    assert_type(ring.reduce_scatter(x, "sum", y), NDArray[np.float64])
    ring.allreduce(x, op="avg")  # error: arg-type
    ring.reduce(x, op="avg")  # error: arg-type
    ring.reduce_scatter(x, op="avg")  # error: call-overload


def configure(codec: ringwide.CodecName, anything: dict[str, Any]) -> None:
    ringwide.RingConfig(codec=codec, segment_bytes="1MiB", buffer_bytes=1 << 20, threshold_bytes="auto", tree_bytes=0)
    ringwide.RingConfig(key_file="ring.key", codec_threads=2, checksum=True, start_timeout_seconds=5)
    ringwide.RingConfig(tls={"cert": "a.pem", "key": "a.key", "ca": "ca.pem"})
    ringwide.RingConfig(**anything)
    assert_type(int(ringwide.RingConfig().segment_bytes), int)
    ringwide.RingConfig(codec="gzip")  # error: arg-type
    ringwide.RingConfig(segment_bytes=1.5)  # error: arg-type
    ringwide.RingConfig(algorithm="star")  # error: arg-type
    ringwide.RingConfig(lanes="two")  # error: arg-type
    ringwide.RingConfig(codek="lz4")  # error: call-arg
"""


@pytest.mark.system
@pytest.mark.parametrize("plugins", ["", "plugins = pydantic.mypy"], ids=["plain", "with pydantic's plugin"])
def test_a_checker_finds_the_mistakes_and_nothing_else(plugins: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "mypy.ini").write_text(f"[mypy]\nstrict = true\nfollow_imports = silent\n{plugins}\n")
    ran = subprocess.run(
        [sys.executable, "-m", "mypy", "--show-error-codes", "--no-pretty", "program.py"],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=110,
    )
    found = {
        int(line): code for line, code in re.findall(r"^program\.py:(\d+): error: .*\[([\w-]+)\]$", ran.stdout, re.M)
    }
    lines = enumerate(PROGRAM.splitlines(), start=1)
    assert found == {number: line.partition("# error: ")[2] for number, line in lines if "# error: " in line}, ran


def test_the_types_name_everything_that_there_is() -> None:
    assert list(RingArguments.__annotations__) == list(RingConfig.model_fields)
    assert get_args(CodecName) == CODECS
    assert sorted(get_args(OpName)) == sorted((*OPERATIONS, *FOR_INTEGERS))
