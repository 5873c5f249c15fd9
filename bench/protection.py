"""What protection costs: `python -m bench protection [--ranks 2,4] [--sizes 64KiB,1MiB,64MiB] [--rounds 15]`.

All-reduce with nothing, with checksums, encrypted and under TLS, in the same processes and in turns, on loopback: there
the network costs least, so this is the most that protection can cost.
"""

import argparse
import datetime
import json
import statistics
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from pydantic import ByteSize, TypeAdapter

from bench.fleet import run_workers
from bench.machine import describe_machine
from bench.units import duration, size_name

RESULT = Path(__file__).parent / "results" / "protection.json"
NOTHING = "nothing"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks", default="2,4", help="numbers of ranks, separated by commas (default: %(default)s)")
    parser.add_argument("--sizes", default="64KiB,1MiB,64MiB", help="bytes of the fp32 tensor (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=15, help="turns of each at each size (default: %(default)s)")
    parser.add_argument("--save", action="store_true", help="write bench/results/protection.json")


def run(options: argparse.Namespace) -> None:
    sizes = [int(TypeAdapter(ByteSize).validate_python(size)) for size in options.sizes.split(",")]
    print(describe_machine())
    cells = []
    with TemporaryDirectory(prefix="bench-protection-") as directory:
        variants = make_variants(Path(directory))
        task = {"sizes": sizes, "rounds": options.rounds, "variants": variants}
        for ranks in map(int, options.ranks.split(",")):
            for cell in run_workers("bench.protection_worker", ranks, task, rings=len(variants)):
                cells += summary(ranks, cell)
    report = {"machine": describe_machine(), "rounds": options.rounds, "cells": cells}
    print(markdown(report))
    if options.save:
        RESULT.write_text(json.dumps(report, indent=1) + "\n")


def make_variants(directory: Path) -> dict[str, dict[str, Any]]:
    """The settings of each ring, with a key and a certificate that are used once."""
    key_file = directory / "ring.key"
    keygen = [sys.executable, "-m", "ringwide", "keygen", str(key_file)]
    subprocess.run(keygen, stdout=subprocess.DEVNULL, check=True, timeout=60)
    cert, key = write_certificate(directory)
    return {
        NOTHING: {"checksum": False},
        "checksum": {"checksum": True},
        "encrypt": {"encrypt": True, "key_file": str(key_file)},
        "tls": {"tls": {"cert": str(cert), "key": str(key), "ca": str(cert)}},
    }


def write_certificate(directory: Path) -> tuple[Path, Path]:
    """One that has signed itself, and is its own authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a benchmark")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    cert_file, key_file = directory / "rank.crt", directory / "rank.key"
    cert_file.write_bytes(certificate.public_bytes(pem))
    key_file.touch(0o600)  # others may not even read it
    key_file.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    return cert_file, key_file


def summary(ranks: int, cell: dict[str, Any]) -> list[dict[str, Any]]:
    """Of each kind of protection: the median of its turns, and how it stands to nothing, turn by turn."""
    plain = cell["seconds"][NOTHING]
    return [
        {
            "ranks": ranks,
            "bytes": cell["bytes"],
            "protection": name,
            "seconds": statistics.median(turns),
            "seconds_quartiles": _quartiles(turns),
            "ratio": statistics.median(ours / none for ours, none in zip(turns, plain, strict=True)),
            "ratio_quartiles": _quartiles([ours / none for ours, none in zip(turns, plain, strict=True)]),
        }
        for name, turns in cell["seconds"].items()
    ]


def _quartiles(values: list[float]) -> list[float]:
    low, _, high = statistics.quantiles(values, n=4)
    return [low, high]


def markdown(report: dict[str, Any]) -> str:
    rows = [
        f"| {cell['ranks']} | {size_name(cell['bytes'])} | {cell['protection']} | {duration(cell['seconds'])} "
        f"| {duration(cell['seconds_quartiles'][0])} - {duration(cell['seconds_quartiles'][1])} "
        f"| {cell['ratio']:.2f}x | {cell['ratio_quartiles'][0]:.2f} - {cell['ratio_quartiles'][1]:.2f} |"
        for cell in report["cells"]
    ]
    heading = "| ranks | size | protection | time | quartiles | time / time with nothing | quartiles |"
    return "\n".join([heading, "| --: | --: | --- | --: | --- | --: | --- |", *rows])
