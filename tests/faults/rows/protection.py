"""The settings of a ring that is protected in one way or another. Keys and certificates are made once a process."""

import atexit
import functools
import tempfile
from pathlib import Path
from typing import Any

from ringwide.bootstrap.protection import make_key_file


def settings_of(protection: str) -> dict[str, Any]:
    """Protected by a `checksum`, by the same and a `key`, by AES (`encrypt`) or by `tls`."""
    match protection:
        case "key":
            return {"checksum": True, "key_file": str(_key_file())}
        case "encrypt":
            return {"encrypt": True, "key_file": str(_key_file())}
        case "tls":
            return {"tls": _certificates()}
        case _:
            return {"checksum": True}


@functools.cache
def _folder() -> Path:
    folder = tempfile.TemporaryDirectory(prefix="ringwide-faults-")
    atexit.register(folder.cleanup)
    return Path(folder.name)


@functools.cache
def _key_file() -> Path:
    path = _folder() / "key"
    make_key_file(path)
    return path


@functools.cache
def _certificates() -> dict[str, str]:
    from tests.transport.certificates import Authority  # needs cryptography, which takes its time

    files = Authority().files_in(_folder())
    return {"cert": str(files.cert), "key": str(files.key), "ca": str(files.ca)}
