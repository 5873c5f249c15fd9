"""Protection of a ring: key file, TLS, encryption, and what a rank needs to listen beyond loopback.

A key file is made once and copied to every machine. Only its owner may read it. While a key is changed it has several
lines, each with a key; the first is preferred.
"""

import os
import re
import secrets
import stat
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from ringwide.errors import ConfigError
from ringwide.protocol.key_proof import KEY_BYTES, KEYS_LIMIT, Secret
from ringwide.transport.tls import TlsContexts, open_nonblocking, why_not_private

VARIABLE, INSECURE_VARIABLE = "RINGWIDE_KEY_FILE", "RINGWIDE_INSECURE"
KEYGEN = "python -m ringwide keygen FILE"
_LABEL = "ringwide-key-1"
_LONGEST_BYTES = 1024
_BEGINNING = "ringwide-key-"
_DIGITS = re.compile(r"[0-9a-fA-F]{64}")
_KEYS_IN_TEXT = re.compile(rf"{_BEGINNING}\w*\W+[0-9a-fA-F]{{8,}}|(?<![0-9a-fA-F])[0-9a-fA-F]{{64}}(?![0-9a-fA-F])")


# -- keys where names of files belong


def looks_like_a_key(text: str) -> bool:
    text = text.strip()
    return text.startswith(_BEGINNING) or _DIGITS.fullmatch(text) is not None


def refuse_keys(settings: object, *, prefix: str = "", but: Collection[str] = ()) -> None:
    """Refuse settings whose value is a key. Called first, since any other error would show the value."""
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
    """The text without the keys that it may contain, for messages that quote what a user wrote."""
    return _KEYS_IN_TEXT.sub("(a key)", text)


def _refuse_key(text: str, origin: str) -> None:
    if looks_like_a_key(text):
        raise ConfigError(f"{origin}: this is a key itself; name the file that it is in")


# -- key files


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
    except BaseException as error:  # half a key is of no use, and in the way of the next try
        path.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise ConfigError(f"{path}: the key cannot be written: {error.strerror}") from error
        raise


def new_key() -> str:
    """The text of a key file."""
    return f"{_LABEL} {secrets.token_hex(KEY_BYTES)}\n"


def _write_key(descriptor: int) -> None:
    with open(descriptor, "w", encoding="ascii") as file:
        os.fchmod(file.fileno(), 0o600)  # the umask may have removed even these
        file.write(new_key())
        file.flush()
        os.fsync(file.fileno())


def load_keys(path: Path, *, origin: str) -> tuple[Secret, ...]:
    """The keys in this file. `origin` says who named the file: a setting, or the environment."""
    where = f"{origin}: {path}"
    lines = _read(path, where).split("\n")
    while len(lines) > 1 and not lines[-1].strip():
        lines.pop()
    if len(lines) > KEYS_LIMIT:
        raise ConfigError(f"{where}: more than {KEYS_LIMIT} lines; a key that no rank uses any more must go")
    if len({line.strip().lower() for line in lines}) < len(lines):
        raise ConfigError(f"{where}: the same line twice; each must be another key")
    return tuple(_key(line, where if len(lines) == 1 else f"{where}, line {n}") for n, line in enumerate(lines, 1))


def _key(line: str, where: str) -> Secret:
    label, _, digits = line.strip().partition(" ")
    try:
        if label != _LABEL:
            raise ValueError
        return Secret(bytes.fromhex(digits))
    except ValueError:  # not `from` it: an error must not carry the content of the file
        raise ConfigError(f"{where}: this is not a key; make one with `{KEYGEN}`") from None


def _read(path: Path, where: str) -> str:
    try:
        descriptor = open_nonblocking(path)
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


@dataclass(frozen=True, slots=True)
class Protection:
    """Settings that protect a ring. The default, no protection, is enough on one machine."""

    secrets: tuple[Secret, ...] = ()  # any of them will do, the first is preferred
    encrypt: bool = False
    tls: TlsContexts | None = None
    insecure: bool = False
    run_id: str = ""
    checksum: bool | None = None  # None: where bytes leave this machine and nothing else protects them

    def __post_init__(self) -> None:
        if self.encrypt and not self.secrets:
            raise ConfigError("encrypt needs the key that all ranks share: without it nothing would be encrypted")

    @property
    def will_do_beyond_loopback(self) -> bool:
        return bool(self.secrets) or self.tls is not None or self.insecure
