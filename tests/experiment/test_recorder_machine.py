import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from ringwide.experiment import recorder


def test_versions_are_those_installed() -> None:
    found = recorder.versions()
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert (found["ringwide"], found["torch"]) == (version("ringwide"), version("torch"))


def test_what_is_not_installed_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "PACKAGES", ("ringwide", "no-such-package"))
    assert recorder.versions().keys() == {"python", "ringwide"}


@pytest.mark.system
def test_asking_imports_nothing_heavy() -> None:
    script = "import sys; from ringwide.experiment.recorder import versions; versions(); print('torch' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=110, check=True)
    assert answer.stdout == "False\n"


def test_the_machine_is_this_one() -> None:
    found = recorder.machine()
    assert found["cpu"]
    assert int(found["cores"]) >= 1
    assert int(found["memory_bytes"]) > 2**20


def test_a_machine_that_does_not_name_its_cpu_is_named_by_its_kind(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(recorder, "CPU_FACTS", tmp_path / "none")
    assert recorder.machine()["cpu"]
