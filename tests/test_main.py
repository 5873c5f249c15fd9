import json
import resource
import subprocess
import sys
from importlib.metadata import version

import pytest

from ringwide.__main__ import main
from ringwide.experiment.config import ExperimentConfig

HEAVY = {"torch", "numpy", "pydantic", "yaml", "rich", "sklearn", "uvloop"}
HELPS = [
    ["--help"],
    ["run", "--help"],
    ["config", "--help"],
    ["config", "schema", "--help"],
    ["config", "keys", "--help"],
    ["node", "--help"],
    ["keygen", "--help"],
]
LIST_MODULES = """
import sys
from ringwide.{module} import main
try:
    main(sys.argv[1:])
except SystemExit as end:
    print("\\nMODULES", end.code, *sys.modules)
"""


@pytest.mark.system
@pytest.mark.parametrize(
    ("module", "arguments"),
    [*(("__main__", help) for help in HELPS), ("__main__", ["--version"]), ("node", ["--help"])],
)
def test_help_imports_nothing_heavy(module: str, arguments: list[str]) -> None:
    code = LIST_MODULES.format(module=module)
    ran = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=110)
    answer, _, modules = ran.stdout.partition("\nMODULES ")
    assert answer
    code, *imported = modules.split()
    assert code == "0"
    assert "ringwide" in imported
    assert HEAVY.isdisjoint(imported)


@pytest.mark.system
def test_help_answers_at_once() -> None:
    # The best of several, in time of a processor: the question is what it costs, not how busy the machine is.
    assert min(_seconds_for([sys.executable, "-m", "ringwide", "--help"]) for _ in range(5)) < 0.3


def _seconds_for(command: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, capture_output=True, timeout=110)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"ringwide {version('ringwide')}\n"


def test_the_schema_describes_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema == ExperimentConfig.model_json_schema()
    assert set(schema["properties"]) >= {"name", "nodes", "ring", "training", "checkpoint", "report", "sweep"}
    for part in [schema, *schema["$defs"].values()]:
        assert part["additionalProperties"] is False
        assert all("description" in key for key in part["properties"].values())


@pytest.mark.parametrize("arguments", [[], ["dance"], ["run"], ["config"], ["node", "--rank", "x", "--peers", "p"]])
def test_a_wrong_command_line_ends_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert "usage: ringwide" in capsys.readouterr().err


def test_an_experiment_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "gone.yaml"]) == 2
    captured = capsys.readouterr()
    assert captured.err == "ringwide: error: gone.yaml: the experiment cannot be read: No such file or directory\n"
    assert captured.out == ""
