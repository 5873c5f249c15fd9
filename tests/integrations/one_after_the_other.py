"""Runs scripts in one process, as one rank of a launcher, because to import torch takes longer than what they do.

python one_after_the_other.py DIRECTORY SCRIPT [ARGUMENT ...] [-- SCRIPT [ARGUMENT ...]] ...
What rank 0 prints is put into DIRECTORY, for each script in a file with its name.
"""

import contextlib
import io
import os
import runpy
import sys
from pathlib import Path


def main(directory: Path, words: list[str]) -> None:
    while words:
        end = words.index("--") if "--" in words else len(words)
        command, words = words[:end], words[end + 1 :]
        printed = _run(command)
        if os.environ["RANK"] == "0":
            (directory / f"{Path(command[0]).stem}.txt").write_text(printed)


def _run(command: list[str]) -> str:
    sys.argv = command
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        runpy.run_path(command[0], run_name="__main__")
    return printed.getvalue()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
