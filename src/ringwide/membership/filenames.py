"""Names of files that a person gives. A key in the place of its file's name is refused, and shown nowhere."""

import re
from collections.abc import Collection, Mapping
from pathlib import Path

from ringwide.errors import ConfigError

_BEGINNING = "ringwide-key-"
_DIGITS = re.compile(r"[0-9a-fA-F]{64}")
_KEYS_IN_TEXT = re.compile(rf"{_BEGINNING}\w*\W+[0-9a-fA-F]{{8,}}|(?<![0-9a-fA-F])[0-9a-fA-F]{{64}}(?![0-9a-fA-F])")


def looks_like_a_key(text: str) -> bool:
    text = text.strip()
    return text.startswith(_BEGINNING) or _DIGITS.fullmatch(text) is not None


def refuse_keys(settings: object, *, prefix: str = "", but: Collection[str] = ()) -> None:
    """To be asked before anything can complain of a setting, and show its value."""
    for name, value in settings.items() if isinstance(settings, Mapping) else ():
        if name not in but:
            _refuse_key(str(value), f"{prefix}{name}")


def file_named(name: str, *, origin: str) -> Path:
    """The file, with ~ resolved. `origin` says who named it: a setting, or the environment."""
    _refuse_key(name, origin)
    if "\0" in name:
        raise ConfigError(f"{origin}: {name!r}: no file can have a name with a zero byte in it")
    try:
        return Path(name).expanduser()
    except RuntimeError as error:
        raise ConfigError(
            f"{origin}: {name}: there is no user of that name here, or it has no home; write the path out"
        ) from error


def concealed(text: str) -> str:
    """The text without the keys that it may hold, for a line that repeats what somebody wrote."""
    return _KEYS_IN_TEXT.sub("(a key)", text)


def _refuse_key(text: str, origin: str) -> None:
    if looks_like_a_key(text):
        raise ConfigError(f"{origin}: this is a key itself; name the file that it is in")
