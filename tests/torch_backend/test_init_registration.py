"""Registration of the backend, which torch triggers in every program: it must be quick, quiet and harmless."""

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

import ringwide.torch as registration

PROGRAM = """
import sys
import torch
began = sys.modules.copy()
assert torch.distributed.is_backend_available("ringwide")
heavy = [name for name in began if name.startswith("ringwide.") and name != "ringwide.torch"]
assert not heavy, heavy
assert "uvloop" not in began and "pydantic" not in began
import ringwide
assert callable(ringwide.torch.allreduce_hook)
assert "ringwide.torch.process_group" in sys.modules and "torch._dynamo" not in sys.modules
"""


@pytest.mark.system
def test_a_program_that_only_imports_torch_has_it_and_pays_nothing() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=300)


@pytest.mark.parametrize(
    "distributed",
    [
        None,
        SimpleNamespace(),  # built without it
        SimpleNamespace(Backend=SimpleNamespace(_plugins={"RINGWIDE": "already"})),
        SimpleNamespace(Backend=SimpleNamespace(_plugins={})),  # it cannot be told any more as it could
        SimpleNamespace(Backend=SimpleNamespace()),
    ],
)
def test_whatever_torch_is_nothing_is_raised(monkeypatch: pytest.MonkeyPatch, distributed: Any) -> None:
    monkeypatch.setitem(sys.modules, "torch.distributed", distributed)
    registration.register()


def test_it_is_told_once_and_for_tensors_of_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []

    class Backend:
        _plugins: dict[str, object] = {}  # noqa: RUF012

        @classmethod
        def register_backend(cls, name: str, create: object, **options: object) -> None:
            told.append((name, options))
            cls._plugins[name.upper()] = create

    monkeypatch.setitem(sys.modules, "torch.distributed", SimpleNamespace(Backend=Backend))
    registration.register()
    registration.register()
    assert told == [("ringwide", {"extended_api": True, "devices": ["cpu"]})]
