"""User code: functions named in an experiment file as `module:function`.

A mistake in them becomes one sentence with its place in the user's file, as any other mistake in an experiment.
"""

import importlib
import inspect
import sysconfig
import traceback
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ringwide.errors import ConfigError, RingwideError

Function = Callable[..., Any]


def resolve(path: str, key: str) -> Function:
    """Function that `module:function` names. `key` is the key of the experiment with that name."""
    where = f"{key}: {path!r}"
    module_name, _, name = path.partition(":")
    module = _imported(module_name, where)
    if not hasattr(module, name):
        raise ConfigError(f"{where}: module {module_name} has no {name!r}{_did_you_mean(name, module)}")
    function = getattr(module, name)
    if not callable(function):
        raise ConfigError(f"{where}: is {function!r}, of type {type(function).__name__}; it should be a function")
    return function  # type: ignore[no-any-return]


def call(path: str, key: str, options: Mapping[str, Any], offered: Mapping[str, Any] | None = None) -> Any:
    """Result of the function, called with `options` and with those of `offered` that it has parameters for."""
    function = resolve(path, key)
    arguments = {**_taken(function, offered or {}), **options}
    _check_arguments(function, arguments, f"{key}_options: {dict(options)}: {path!r}")
    return guarded(function, f"{key}: {path!r}")(**arguments)


def guarded(function: Function, where: str) -> Function:
    """The same function, with its exceptions turned into a `ConfigError` about `where`."""

    def call_it(*values: Any, **options: Any) -> Any:
        try:
            return function(*values, **options)
        except RingwideError:
            raise
        except (Exception, SystemExit) as error:  # sys.exit() would end the node silently
            raise ConfigError(f"{where}: {_described(error)}") from error

    return call_it


def _imported(name: str, where: str) -> object:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:  # sys.exit() in a script would end the node silently
        if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
            raise ConfigError(
                f"{where}: no module named {error.name!r}; put it next to the experiment file, or install it"
            ) from error
        raise ConfigError(f"{where}: importing {name} failed: {_described(error)}") from error


def _did_you_mean(name: str, module: object) -> str:
    functions = [known for known, value in vars(module).items() if callable(value)]
    close = get_close_matches(name, functions, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _taken(function: Function, offered: Mapping[str, Any]) -> dict[str, Any]:
    signature = _signature(function)
    return {name: value for name, value in offered.items() if signature and name in signature.parameters}


def _check_arguments(function: Function, arguments: Mapping[str, Any], where: str) -> None:
    signature = _signature(function)
    if signature is None:
        return
    try:
        signature.bind(**arguments)
    except TypeError as error:
        takes = ", ".join(map(str, signature.parameters.values())) or "no arguments"
        raise ConfigError(f"{where}: {error}; it takes {takes}") from error


def _signature(function: Function) -> inspect.Signature | None:
    """Signature, or None if it is unknown, as for some functions not written in Python."""
    try:
        return inspect.signature(function)
    except (ValueError, TypeError):
        return None


def _described(error: BaseException) -> str:
    text = " ".join(f"{type(error).__name__}: {error}".split())
    theirs = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_theirs(frame.filename)]
    return f"{text} ({Path(theirs[-1].filename).name}, line {theirs[-1].lineno})" if theirs else text


def _is_theirs(file: str) -> bool:
    """Whether the file is the user's: not one of ours, and not of Python or an installed package."""
    library, ours = sysconfig.get_paths()["stdlib"], str(Path(__file__).parents[1])
    return not file.startswith(("<", library, ours)) and "site-packages" not in Path(file).parts
