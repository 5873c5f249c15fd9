from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ringwide.errors import ConfigError
from ringwide.training.user_code import call, guarded, resolve

Write = Callable[[str, str], None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    monkeypatch.syspath_prepend(tmp_path)
    return lambda name, text: _write(tmp_path / name, text)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


def complaint(act: Callable[[], Any]) -> str:
    with pytest.raises(ConfigError) as raised:
        act()
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_a_function_is_found_by_its_path(write: Write) -> None:
    write("found/inner.py", "def answer(): return 42")
    assert resolve("found.inner:answer", "training.model")() == 42


@pytest.mark.parametrize("path", ["nowhere:answer", "nowhere.inner:answer", "json.nowhere:answer"])
def test_a_module_that_is_not_there_is_named(path: str) -> None:
    name = path.partition(":")[0] if path.startswith("json") else "nowhere"
    assert complaint(lambda: resolve(path, "training.data")) == (
        f"training.data: {path!r}: no module named {name!r}; put it next to the experiment file, or install it"
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("\n\n1 / 0", "ZeroDivisionError: division by zero ({file}, line 3)"),
        ("import not_there", "ModuleNotFoundError: No module named 'not_there' ({file}, line 1)"),
        ("def x(:", "SyntaxError: invalid syntax ({file}, line 1)"),
        ("import sys\nsys.exit(3)", "SystemExit: 3 ({file}, line 2)"),
        ("import json\njson.loads('{')", "JSONDecodeError: "),
        ("raise ValueError('two\\nlines')", "ValueError: two lines ({file}, line 1)"),
    ],
)
def test_a_module_that_cannot_be_imported_says_why(text: str, told: str, write: Write, tmp_path: Path) -> None:
    name = f"broken_{abs(hash(text))}"
    write(f"{name}.py", text)
    heard = complaint(lambda: resolve(f"{name}:model", "training.model"))
    assert f"importing {name} failed: {told.format(file=f'{name}.py')}" in heard


def test_the_place_told_is_the_users_and_not_the_librarys(write: Write) -> None:
    write("parses.py", "import json\n\njson.loads('{')")
    assert complaint(lambda: resolve("parses:x", "training.model")).endswith("(parses.py, line 3)")


def test_a_function_that_is_not_there_is_guessed(write: Write) -> None:
    write("misspelt.py", "def network(): pass\nnetwork_size = 3")
    assert complaint(lambda: resolve("misspelt:netwrok", "training.model")) == (
        "training.model: 'misspelt:netwrok': module misspelt has no 'netwrok'; did you mean 'network'?"
    )
    assert complaint(lambda: resolve("misspelt:zzz", "training.model")).endswith("has no 'zzz'")


def test_what_cannot_be_called_is_refused(write: Write) -> None:
    write("constant.py", "network = 3")
    assert complaint(lambda: resolve("constant:network", "training.model")) == (
        "training.model: 'constant:network': is 3, of type int; it should be a function"
    )


def test_options_are_keyword_arguments_and_what_is_offered_is_passed_if_it_is_taken(write: Write) -> None:
    write("takes.py", "def one(outputs, depth=1): return outputs, depth\ndef none(): return 'none'")
    offered = {"inputs": (64,), "outputs": 10}
    assert call("takes:one", "training.model", {"depth": 3}, offered) == (10, 3)
    assert call("takes:one", "training.model", {"outputs": 5}, offered) == (5, 1)
    assert call("takes:none", "training.model", {}, offered) == "none"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"deep": 3, "width": 2}, "got an unexpected keyword argument 'deep'"),
        ({}, "missing a required argument: 'width'"),
    ],
)
def test_wrong_options_name_those_it_takes(options: dict[str, int], problem: str, write: Write) -> None:
    write("options.py", "def model(width, depth: int = 1): pass")
    assert complaint(lambda: call("options:model", "training.model", options)) == (
        f"training.model_options: {options}: 'options:model': {problem}; it takes width, depth: int = 1"
    )


def test_a_function_that_raises_is_told_with_its_place(write: Write) -> None:
    write("raises.py", "def data():\n    return {}['missing']")
    assert complaint(lambda: call("raises:data", "training.data", {})) == (
        "training.data: 'raises:data': KeyError: 'missing' (raises.py, line 2)"
    )


def test_a_config_error_of_the_function_itself_is_passed_on() -> None:
    def refuse() -> None:
        raise ConfigError("not so")

    assert complaint(guarded(refuse, "training.loss")) == "not so"


def test_a_function_that_ends_the_process_is_told_with_its_place(write: Write) -> None:
    write("leaves.py", "import sys\n\ndef data():\n    sys.exit('enough')")
    assert complaint(lambda: call("leaves:data", "training.data", {})) == (
        "training.data: 'leaves:data': SystemExit: enough (leaves.py, line 4)"
    )
