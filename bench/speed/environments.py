"""Environments of the peers' own, next to pyproject.toml in .bench/: made when first needed, then kept."""

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLACE = ROOT / ".bench"
CONSTRAINTS = ROOT / "constraints.txt"
MAKING_SECONDS = 900


class PeerUnavailable(Exception):
    """A peer cannot take part. The text says why."""


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment, and what is installed into it; constraints.txt pins what those need."""

    name: str
    requirements: tuple[str, ...]

    @property
    def directory(self) -> Path:
        return PLACE / self.name

    @property
    def python(self) -> Path:
        return self.directory / "bin" / "python"

    def make(self, tell: Callable[[str], None]) -> None:
        """Do nothing if it is there, as it should be. Raises `PeerUnavailable`."""
        PLACE.mkdir(exist_ok=True)
        with open(PLACE / f"{self.name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # another run may be making it
            if not self._is_ready():
                tell(f"making .bench/{self.name} with {', '.join(self.requirements)}, once")
                self._make_anew()

    def _make_anew(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)
        _run("making its environment", sys.executable, "-m", "venv", str(self.directory))
        options = ["--quiet", "--disable-pip-version-check", "--no-input", "--constraint", str(CONSTRAINTS)]
        _run("installing it", str(self.python), "-m", "pip", "install", *options, *self.requirements)
        self._mark.write_text(self._wanted)

    def _is_ready(self) -> bool:
        return self.python.exists() and self._mark.exists() and self._mark.read_text() == self._wanted

    @property
    def _mark(self) -> Path:
        return self.directory / ".ready"

    @property
    def _wanted(self) -> str:
        return "\n".join([*self.requirements, sys.version])


def _run(what: str, *command: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=MAKING_SECONDS, env=environment)
    except subprocess.TimeoutExpired:
        raise PeerUnavailable(f"{what} took longer than {MAKING_SECONDS} s") from None
    except OSError as error:
        raise PeerUnavailable(f"{what} failed: {error}") from None
    if done.returncode:
        raise PeerUnavailable(f"{what} failed: {reason_in(done.stderr or done.stdout)}")


def reason_in(log: str) -> str:
    """The line that says most: the last that speaks of an error, or the last."""
    lines = [line.strip() for line in log.splitlines() if line.strip(" -*=\t")]
    telling = [line for line in lines if "error" in line.lower()]
    return (telling or lines or ["it said nothing"])[-1]
