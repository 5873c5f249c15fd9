"""What cannot be measured is said at once, in one sentence: not when an hour has been measured, nor as a traceback."""

import argparse
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from bench.costs import command as costs
from bench.delay import command as delay
from bench.speed import command as speed

from bench import compare


def called(command: ModuleType, *arguments: str) -> Any:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    with pytest.raises(SystemExit) as ended:
        command.run(parser.parse_args(arguments))
    return ended.value.code


@pytest.mark.parametrize(
    ("command", "arguments", "words"),
    [
        (speed, ["--rounds=0"], "--rounds 0 is no round at all"),
        (speed, ["--into=/nowhere/result.json"], "there is no directory /nowhere"),
        (speed, ["--ranks=0"], "'0' is not a list of whole numbers from 1 on"),
        (costs, ["--rounds=0"], "--rounds 0 is no round at all"),
        (delay, ["--rounds=0"], "--rounds 0 is no round at all"),
        (delay, ["--ranks=0"], "--ranks 0 has no link"),
        (delay, ["--ranks=1"], "--ranks 1 has no link"),
        (delay, ["--window=0"], "'0' is not a size"),
        (delay, ["--rate=fast"], "'fast' is not a rate"),
    ],
)
def test_it_is_said_before_anything_is_measured(
    command: ModuleType, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words in called(command, *arguments)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "cell",
    [
        {"seconds": 1.0, "seconds_quartiles": [1.0]},
        {"seconds": "fast", "seconds_quartiles": ["a", "b"], "rounds": "many"},
        {"seconds": 0.0, "seconds_quartiles": [0.0, 0.0]},
        {"over": "gloo"},
        {"over_gloo": [1.0, 2.0]},
        {"rate": [1, 2]},
    ],
)
def test_a_result_without_sense_is_not_taken_for_a_slow_one(
    cell: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps({"cells": [{"bytes": 4096, **cell}]}))
    assert called(compare, str(path), str(path)) in (0, 2)
    assert "Traceback" not in capsys.readouterr().err
