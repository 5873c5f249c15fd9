"""What guards the connections of a rank: against those who are not of the ring, and against damage on the way."""

from dataclasses import dataclass

from ringwide.errors import ConfigError
from ringwide.protocol.key_proof import Secret
from ringwide.transport.tls import TlsContexts

INSECURE_VARIABLE = "RINGWIDE_INSECURE"


@dataclass(frozen=True, slots=True)
class Protection:
    """Nothing by default, which is enough on one machine."""

    secret: Secret | None = None
    encrypt: bool = False
    tls: TlsContexts | None = None
    insecure: bool = False
    run_id: str = ""
    checksum: bool | None = None  # None: where bytes leave this machine and nothing else guards them

    def __post_init__(self) -> None:
        if self.encrypt and self.secret is None:
            raise ConfigError("encrypt needs the key that all ranks share: without it nothing would be encrypted")

    @property
    def will_do_beyond_loopback(self) -> bool:
        return self.secret is not None or self.tls is not None or self.insecure
