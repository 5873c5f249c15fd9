"""Certificates of an authority that exists for one test run."""

import datetime
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from secrets import token_hex

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from ringwide.transport.tls import TlsContexts, tls_contexts


@dataclass(frozen=True, slots=True)
class Files:
    """What a rank is given: its certificate, the key to it, and the authority's certificate."""

    cert: Path
    key: Path
    ca: Path


class Authority:
    """Signs certificates for ranks."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"authority {token_hex(4)}")])
        self._certificate = self._signed(self._name, self._key, is_authority=True)

    def files_in(self, directory: Path, *names: str) -> Files:
        """A fresh certificate for one rank, with these subject alternative names."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a rank")])
        files = Files(directory / "rank.crt", directory / "rank.key", directory / "ca.crt")
        files.cert.write_bytes(_pem(self._signed(name, key, names)))
        files.key.touch(0o600)
        files.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        files.ca.write_bytes(_pem(self._certificate))
        return files

    def _signed(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        names: tuple[str, ...] = (),
        *,
        is_authority: bool = False,
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName([*map(x509.DNSName, names)]), critical=False)
        return builder.sign(self._key, hashes.SHA256())


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


@cache
def own_contexts() -> TlsContexts:
    """For every test that only needs some certificate."""
    with tempfile.TemporaryDirectory() as directory:
        files = Authority().files_in(Path(directory))
        return tls_contexts(cert=files.cert, key=files.key, ca=files.ca)
