"""Bytes that a fuzzer makes up, guided by the code that they reach: `python -m tests.fuzz [--seconds 60]`.

Needs atheris (`pip install 'ringwide[fuzz]'`, as `make fuzz` does). Ends with exit code 0 when the time is over, and
otherwise with the bytes that broke a promise, in a file named crash-... in the current directory.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import atheris
import numpy as np

with atheris.instrument_imports(include=["ringwide"]):
    from tests.fuzz import mutation
    from tests.fuzz.targets import TARGETS

from ringwide.compression.codecs import registry

LONGEST_BYTES = 6000


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="how long (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="0: another one each time (the default)")
    parser.add_argument(
        "--corpus", type=Path, help="keep what was found interesting in this directory, and begin with it"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ringwide-fuzz-") as seeds:
        write_seeds(Path(seeds))
        limits = [f"-max_total_time={options.seconds}", f"-max_len={LONGEST_BYTES}", "-timeout=5", "-rss_limit_mb=1024"]
        kept = [] if options.corpus is None else [str(options.corpus)]
        flags = [*limits, f"-seed={options.seed}", "-print_final_stats=1", "-verbosity=1"]
        atheris.Setup([sys.argv[0], *flags, *kept, seeds], one_input)
        atheris.Fuzz()


def one_input(data: bytes) -> None:
    """The first byte chooses who reads the rest."""
    if data:
        TARGETS[data[0] % len(TARGETS)](data[1:])


def write_seeds(directory: Path) -> None:
    words = [*mutation.stream_seeds(), *mutation.handshake_seeds(), *mutation.sign_seeds(), *codec_seeds()]
    for number, seed in enumerate(words):
        for target in range(len(TARGETS)):
            (directory / f"{number}-{target}").write_bytes(bytes([target]) + seed)


def codec_seeds() -> list[bytes]:
    """What each codec makes of a few numbers, as the target for codecs takes it."""
    numbers = np.tile(np.array([0, 1.5, -2, 0.25, 0, 0], np.float32), 50)
    found = [(registry.decoder(number), number) for number in range(256)]
    encoded = [(codec.encode(numbers), number) for codec, number in found if codec is not None]
    head = len(numbers).to_bytes(2, "little") + b"\0"
    return [bytes([number]) + head + bytes(payload) for payload, number in encoded if payload is not None]


if __name__ == "__main__":
    main()
