"""What a user brings: functions named in an experiment file as `module:function`.

A mistake in them is told in one sentence, with the place in the user's file, as any other mistake in an experiment.
"""

import importlib
import inspect
import traceback
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ringwide.errors import ConfigError

Function = Callable[..., Any]


def resolve(path: str, key: str) -> Function:
    """The function that `module:function` names; `key` is where the experiment says so."""
    module_name, _, name = path.partition(":")
    module = _imported(module_name, f"{key}: {path!r}")
    if not hasattr(module, name):
        raise ConfigError(f"{key}: {path!r}: module {module_name} has no {name!r}{_did_you_mean(name, module)}")
    function = getattr(module, name)
    if not callable(function):
        raise ConfigError(f"{key}: {path!r}: is {_a(function)}; it should be a function")
    return function  # type: ignore[no-any-return]


def call(path: str, key: str, options: Mapping[str, Any], offered: Mapping[str, Any] | None = None) -> Any:
    """What the function returns, called with `options` and with as much of `offered` as it takes."""
    function = resolve(path, key)
    arguments = {**_taken(function, offered or {}), **options}
    _check_arguments(function, arguments, f"{key}_options: {dict(options)}: {path!r}")
    try:
        return function(**arguments)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"{key}: {path!r}: {_told(error)}") from error


def parameters_of(function: Function) -> dict[str, inspect.Parameter] | None:
    """None if it cannot be known, as for some functions that are not written in Python."""
    try:
        return dict(inspect.signature(function).parameters)
    except (ValueError, TypeError):
        return None


def _imported(name: str, where: str) -> object:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise ConfigError(f"{where}: importing {name} failed: {_told(error)}") from error
        raise ConfigError(
            f"{where}: no module named {error.name!r}; it should be beside the experiment file or installed"
        ) from error
    except (Exception, SystemExit) as error:  # a script that calls sys.exit() would otherwise end the node in silence
        raise ConfigError(f"{where}: importing {name} failed: {_told(error)}") from error


def _did_you_mean(name: str, module: object) -> str:
    functions = [known for known, value in vars(module).items() if callable(value)]
    close = get_close_matches(name, functions, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _taken(function: Function, offered: Mapping[str, Any]) -> dict[str, Any]:
    known = parameters_of(function) or {}
    return {name: value for name, value in offered.items() if name in known}


def _check_arguments(function: Function, arguments: Mapping[str, Any], where: str) -> None:
    known = parameters_of(function)
    if known is None:
        return
    try:
        inspect.signature(function).bind(**arguments)
    except TypeError as error:
        takes = ", ".join(map(str, known.values())) or "no arguments"
        raise ConfigError(f"{where}: {error}; it takes {takes}") from error


def _told(error: BaseException) -> str:
    text = " ".join(f"{type(error).__name__}: {error}".split())
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if frame.filename != __file__ and not frame.filename.startswith("<")]
    return f"{text} ({Path(theirs[-1].filename).name}, line {theirs[-1].lineno})" if theirs else text


def _a(value: object) -> str:
    return f"{value!r}, of type {type(value).__name__}"
