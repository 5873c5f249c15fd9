"""The file with the key that all ranks share: made once, copied to every machine, read by nobody else.

A key is 32 random bytes, written as one line of text. It is never printed, logged or part of an error.
"""

import os
import secrets
import stat
from pathlib import Path

from ringwide.errors import ConfigError
from ringwide.protocol.proof import KEY_BYTES, Secret

VARIABLE = "RINGWIDE_KEY_FILE"
KEYGEN = "python -m ringwide keygen FILE"
_LABEL = "ringwide-key-1"
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_LONGEST_BYTES = 1024


def make_key_file(path: Path) -> None:
    """A new key in a new file that only its owner can read."""
    line = f"{_LABEL} {secrets.token_hex(KEY_BYTES)}\n"
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError as error:
        raise ConfigError(
            f"{path}: there is such a file already, and a key that ranks use must not be lost; choose another name, or "
            "remove it first"
        ) from error
    except OSError as error:
        raise ConfigError(f"{path}: the key cannot be written: {error.strerror}") from error
    with open(descriptor, "w", encoding="ascii") as file:
        os.fchmod(file.fileno(), 0o600)  # a umask may have taken more than that away
        file.write(line)


def load_key(path: Path, *, origin: str) -> Secret:
    """The key in this file. `origin` says who named the file: a setting, or the environment."""
    where = f"{origin}: {path}"
    text = _read(path, where)
    label, _, digits = text.strip().partition(" ")
    try:
        if label != _LABEL:
            raise ValueError
        return Secret(bytes.fromhex(digits))
    except ValueError:  # not `from` it: an error must not carry what stands in the file
        raise ConfigError(f"{where}: this is not a key; make one with `{KEYGEN}`") from None


def _read(path: Path, where: str) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe that nobody feeds would wait
    except FileNotFoundError as error:
        raise ConfigError(
            f"{where}: there is no such key file; make one with `{KEYGEN}` and copy it to every machine"
        ) from error
    except OSError as error:
        raise ConfigError(f"{where}: the key file cannot be read: {error.strerror}") from error
    try:
        _require_private(os.fstat(descriptor).st_mode, path, where)
        return os.read(descriptor, _LONGEST_BYTES).decode("ascii", errors="replace")
    finally:
        os.close(descriptor)


def _require_private(mode: int, path: Path, where: str) -> None:
    if not stat.S_ISREG(mode):
        raise ConfigError(f"{where}: this is not a file; make a key with `{KEYGEN}`")
    if mode & _OTHERS:
        raise ConfigError(
            f"{where}: the key file has mode {stat.S_IMODE(mode):04o}, so that others on this machine can use it; "
            f"keep it to yourself: chmod 600 {path}"
        )
