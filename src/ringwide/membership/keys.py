"""The file with the key that all ranks share: made once, copied to every machine, read by nobody else.

A key is 32 random bytes, written as one line of text. It is never printed, logged or part of an error.
"""

import os
import secrets
import stat
from pathlib import Path

from ringwide.errors import ConfigError
from ringwide.membership.filenames import looks_like_a_key
from ringwide.protocol.proof import KEY_BYTES, Secret
from ringwide.transport.private import open_without_waiting, why_not_private

VARIABLE = "RINGWIDE_KEY_FILE"
KEYGEN = "python -m ringwide keygen FILE"
_LABEL = "ringwide-key-1"
_LONGEST_BYTES = 1024


def make_key_file(path: Path) -> None:
    """A new key in a new file that only its owner can read."""
    if looks_like_a_key(str(path)):
        raise ConfigError("a file of that name would be taken for a key itself; choose another name, such as ring.key")
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError as error:
        raise ConfigError(
            f"{path}: there is such a file already, and a key that ranks use must not be lost; choose another name, or "
            "remove it first"
        ) from error
    except OSError as error:
        raise ConfigError(f"{path}: the key cannot be written: {error.strerror}") from error
    try:
        _write_key(descriptor)
    except BaseException as error:  # half a key would be of no use, and in the way of the next try
        path.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise ConfigError(f"{path}: the key cannot be written: {error.strerror}") from error
        raise


def new_key() -> str:
    """The text of a key file."""
    return f"{_LABEL} {secrets.token_hex(KEY_BYTES)}\n"


def _write_key(descriptor: int) -> None:
    with open(descriptor, "w", encoding="ascii") as file:
        os.fchmod(file.fileno(), 0o600)  # a umask may have taken more than that away
        file.write(new_key())
        file.flush()
        os.fsync(file.fileno())


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
        descriptor = open_without_waiting(path)
    except FileNotFoundError as error:
        raise ConfigError(
            f"{where}: there is no such key file; make one with `{KEYGEN}` and copy it to every machine"
        ) from error
    except OSError as error:
        raise ConfigError(f"{where}: the key file cannot be read: {error.strerror}") from error
    try:
        _require_private(os.fstat(descriptor), path, where)
        return os.read(descriptor, _LONGEST_BYTES).decode("ascii", errors="replace")
    finally:
        os.close(descriptor)


def _require_private(found: os.stat_result, path: Path, where: str) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise ConfigError(f"{where}: this is not a file; make a key with `{KEYGEN}`")
    if problem := why_not_private(found, path):
        raise ConfigError(f"{where}: the key file {problem}")
