"""Settings of a ring: flat, each with its unit in its name and a good default.

Sizes may be integers or text with a unit (`"1MiB"`, `"512 KB"`). Everything is checked on loading; unknown keys are
errors. The packages below take plain arguments, never these objects.
"""

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, Unpack

from pydantic import ByteSize, ConfigDict, Field, TypeAdapter, ValidationInfo, field_validator, model_validator

from ringwide.bootstrap.protection import (
    INSECURE_VARIABLE,
    KEYGEN,
    Protection,
    concealed,
    file_named,
    load_keys,
    refuse_keys,
)
from ringwide.bootstrap.protection import VARIABLE as KEY_VARIABLE
from ringwide.bootstrap.unix_sockets import SameHost
from ringwide.compression.codecs import registry
from ringwide.compression.codecs.base import Codec
from ringwide.config import RingArguments, validation
from ringwide.config.document import Document, DocumentKind, read_document
from ringwide.config.validation import DECIDES_BITS, EQUAL, OverrideSource, Settings
from ringwide.errors import ConfigError
from ringwide.transport.aead_wire import KEY_BYTES, cipher
from ringwide.transport.tls import TlsContexts, tls_contexts

CODECS = (*registry.NAMES, "auto")
TREE_LIMIT_BYTES, RAW_TREE_LIMIT_BYTES = 1024 * 1024, 256 * 1024
"""As much as `auto` may choose anywhere; and as every express lane carries in one frame, where a codec may compete."""
_SWITCH: tuple[TypeAdapter[Any], str] = TypeAdapter(bool), ", true or false"
_AUTO_OR: dict[str, tuple[TypeAdapter[Any], str]] = {
    "codec_threads": (TypeAdapter(Annotated[int, Field(ge=0, le=64)]), " or a whole number from 0 to 64"),
    "error_feedback": _SWITCH,
    "checksum": _SWITCH,
    "tree_bytes": (TypeAdapter(Annotated[ByteSize, Field(le=TREE_LIMIT_BYTES)]), " or a size of at most 1MiB"),
    "threshold_bytes": (TypeAdapter(ByteSize), " or a size such as 512KiB"),
}
"""Settings that are `auto` or a value of this type, and how error texts call that."""
FILE_VARIABLE, SET_VARIABLE = "RINGWIDE_CONFIG", "RINGWIDE_SET"
_BY_VARIABLE = OverrideSource(SET_VARIABLE, f"write KEY=VALUE, as in {SET_VARIABLE}='codec=lz4 lanes=2'")
_YES, _NO = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")
KIB = 1024
MIB = 1024 * KIB


class TlsFiles(Settings):
    """Files for mutual TLS: this rank's certificate and private key, and the authority of all ranks (PEM)."""

    cert: Path = Field(description="This rank's certificate, good for both roles of a connection (PEM).")
    key: Path = Field(description="Its private key, without a passphrase, in a file that others cannot read (PEM).")
    ca: Path = Field(description="The certificate of the authority that signs those of all ranks (PEM).")
    names: tuple[str, ...] | None = Field(
        default=None, description="For each rank, in order, a subject alternative name that its certificate must have."
    )

    @model_validator(mode="before")
    @classmethod
    def _no_key_is_shown(cls, files: object) -> object:
        refuse_keys(files, prefix="tls.")
        return files

    def load(self) -> TlsContexts:
        files = {name: file_named(str(getattr(self, name)), origin=f"tls.{name}") for name in ("cert", "key", "ca")}
        return tls_contexts(**files, names=self.names)


class RingConfig(Settings):
    """Settings with which a rank joins a ring. Those that must be equal on all ranks are compared in the handshake."""

    model_config = ConfigDict(validate_default=True)

    if TYPE_CHECKING:  # what a checker would make of the fields takes no "1MiB", and with pydantic's plugin anything

        def __init__(self, **settings: Unpack[RingArguments]) -> None: ...

    segment_bytes: ByteSize = Field(
        default=ByteSize(1 * MIB),
        ge=4 * KIB,
        le=64 * MIB,
        json_schema_extra=EQUAL | DECIDES_BITS,
        description="Bytes that are sent, added and passed on as one piece.",
    )
    buffer_bytes: ByteSize = Field(
        default=ByteSize(4 * MIB),
        ge=16 * KIB,
        le=1024 * MIB,
        description="Socket buffers requested, in each direction.",
    )
    lanes: int = Field(
        default=1,
        ge=1,
        le=64,
        json_schema_extra=EQUAL,
        description="Connections to each neighbour; a tensor is striped over them.",
    )
    messages: bool = Field(
        default=False, json_schema_extra=EQUAL, description="A lane between every two ranks for messages and exchange."
    )
    algorithm: Literal["auto", "ring", "tree"] = Field(
        default="auto",
        json_schema_extra=EQUAL | DECIDES_BITS,
        description="auto: the tree up to tree_bytes, the segmented ring above.",
    )
    tree_bytes: ByteSize | Literal["auto"] = Field(
        default="auto",
        json_schema_extra=EQUAL | DECIDES_BITS,
        description="The largest bucket that algorithm auto sends by the tree, at most 1 MiB; auto: depends on where "
        "the ranks are, 64 KiB between hosts, 256 on one, 512 by shared memory and 1024 there if cores are few.",
    )
    half_precision: Literal["float32", "native"] = Field(
        default="float32",
        json_schema_extra=EQUAL | DECIDES_BITS,
        description="How float16 and bfloat16 are summed: in float32, rounded once at the end, or native.",
    )
    codec: str = Field(
        default="none",
        json_schema_extra={"enum": [*CODECS], **EQUAL, **DECIDES_BITS},
        description=f"Encoding on the wire: {', '.join(CODECS[:-1])}, or auto: the one measured to be fastest.",
    )
    allow_lossy: bool = Field(
        default=False,
        json_schema_extra=EQUAL | DECIDES_BITS,
        description=f"Allow codecs that lose precision: {', '.join(registry.LOSSY)}.",
    )
    codec_level: int | None = Field(default=None, description="How hard zlib (1 to 9) or lz4-frame (0 to 16) tries.")
    codec_acceleration: int | None = Field(
        default=None, description="How fast lz4 is at the cost of its ratio, 1 to 65537."
    )
    codec_shuffle: bool = Field(
        default=False,
        description="Group bytes by their place in a number before a lossless codec: smaller for dense floats.",
    )
    topk_fraction: float | None = Field(
        default=None, json_schema_extra=DECIDES_BITS, description="Share of the numbers that topk sends; default 0.01."
    )
    threshold_bytes: ByteSize | Literal["auto"] = Field(
        default=ByteSize(512 * KIB),
        json_schema_extra=EQUAL | DECIDES_BITS,
        description="Smaller segments are sent raw; auto: those for which the codec is measured not to pay.",
    )
    error_feedback: bool | Literal["auto"] = Field(
        default="auto",
        json_schema_extra=DECIDES_BITS,
        description="Add what a lossy codec dropped to the next numbers of the same bucket; auto: for topk.",
    )
    codec_threads: int | Literal["auto"] = Field(
        default="auto",
        description="Threads that encode and decode; 0: the event loop does it; auto: as many as cores are idle.",
    )
    start_timeout_seconds: float = Field(
        default=60.0, gt=0, le=86_400, description="How long join waits for all ranks."
    )
    collective_timeout_seconds: float = Field(
        default=300.0,
        gt=0,
        le=86_400,
        description="A collective without progress for this long fails; any progress restarts the time.",
    )
    suspect_after_seconds: float = Field(
        default=10.0,
        gt=0,
        le=3_600,
        description="A rank that a collective waits for and that sends nothing for this long is lost; a rank that "
        "computes still sends heartbeats.",
    )
    warn_after_seconds: float = Field(
        default=10.0,
        gt=0,
        le=86_400,
        description="A collective without progress for this long is reported, with the ranks it waits for.",
    )
    checksum: bool | Literal["auto"] = Field(
        default="auto",
        description="A checksum on every frame, so that damage is noticed; auto: on connections beyond this machine.",
    )
    on_nonfinite: Literal["ignore", "warn", "raise"] = Field(
        default="ignore",
        description="NaN or infinity that a rank brings to a reduction: ignore; warn, naming tensor and index; "
        "raise, on all ranks.",
    )
    keepalive_seconds: int = Field(
        default=10, ge=1, le=7_200, description="Silence before the kernel probes a connection."
    )
    user_timeout_seconds: float = Field(
        default=30.0, ge=1, le=3_600, description="The kernel ends a connection after so long without acknowledgement."
    )
    linger_seconds: float = Field(
        default=200e-6,
        ge=0,
        le=0.01,
        description="How long a small collective polls for each answer before it sleeps, if each rank has a core; "
        "the event loop is blocked meanwhile.",
    )
    listen: str | None = Field(
        default=None, description='"host:port" to listen on where it differs from this rank\'s line in the peers file.'
    )
    same_host: SameHost = Field(
        default="auto",
        description="How ranks on one machine connect: auto, by shared memory and Unix-domain sockets where possible, "
        "else by TCP; tcp; or unix, by sockets without shared memory, and a rank on another machine is an error.",
    )
    run_id: str = Field(
        default="", max_length=128, description="Name of this run; ranks that were started with another are refused."
    )
    key_file: Path | None = Field(
        default=None,
        description="The key that all ranks share, made by `ringwide keygen`; by default the file that the variable "
        "RINGWIDE_KEY_FILE names. Several lines, each with a key: any of them will do.",
    )
    encrypt: bool = Field(default=False, description="Encrypt every frame with keys that come from key_file.")
    tls: TlsFiles | None = Field(
        default=None,
        description="Mutual TLS 1.3: {cert, key, ca}, files of this rank's certificate, and perhaps names.",
    )
    insecure: bool = Field(
        default=False,
        description="Allow listening beyond loopback without a key or certificates; RINGWIDE_INSECURE=1 does as well.",
    )

    @model_validator(mode="before")
    @classmethod
    def _no_key_is_shown(cls, settings: object) -> object:
        """Runs before pydantic, whose errors repeat values. A run_id may be any digest."""
        refuse_keys(settings, but=("run_id",))
        return settings

    @field_validator("codec")
    @classmethod
    def _codec_is_known(cls, codec: str) -> str:
        if codec not in CODECS:
            raise ValueError(f"{codec!r} is not a codec; choose one of {', '.join(CODECS)}")
        return codec

    @field_validator(*_AUTO_OR, mode="before")
    @classmethod
    def _is_auto_or_value(cls, value: object, info: ValidationInfo) -> object:
        """Runs before pydantic, which would try both types and complain of both."""
        kind, right = _AUTO_OR[info.field_name or ""]
        return value if value == "auto" else validation.checked_value(value, kind, f"auto{right}")

    @model_validator(mode="after")
    def _codec_can_work(self) -> Self:
        if self.codec in registry.LOSSY and not self.allow_lossy:
            raise ValueError(
                f"codec {self.codec!r} loses precision; set allow_lossy: true if you mean it, "
                f"or choose a lossless one: {', '.join(registry.LOSSLESS)}"
            )
        if self.codec != "none" and self.algorithm == "tree":
            raise ValueError(
                f"algorithm {self.algorithm!r} sends numbers raw; use 'auto' or 'ring' with codec {self.codec!r}"
            )
        threshold = self.threshold_bytes
        if self.codec != "none" and isinstance(threshold, int) and threshold > self.segment_bytes:
            raise ValueError(
                f"no segment reaches threshold_bytes ({threshold}), as segment_bytes is {int(self.segment_bytes)}, "
                f"so codec {self.codec!r} would do nothing; set threshold_bytes to at most {self.segment_bytes // 2}"
            )
        if self.codec == "auto":
            self._refuse_options_of_codecs()
        else:
            self.make_codec()
        return self

    def _refuse_options_of_codecs(self) -> None:
        for name in ("codec_level", "codec_acceleration", "codec_shuffle", "topk_fraction"):
            if getattr(self, name) not in (None, False):
                raise ValueError(f"{name} belongs to a codec of your choice; remove it, or name that codec, not auto")

    def tree_bytes_where(self, auto_bytes: int) -> int:
        """Largest bucket for the tree, where `auto` means `auto_bytes`.

        The tree sends raw, so buckets that a codec should encode do not go through it.
        """
        limit = auto_bytes if self.tree_bytes == "auto" else self.tree_bytes
        if self.codec == "none":
            return limit
        return min(limit, RAW_TREE_LIMIT_BYTES if self.threshold_bytes == "auto" else self.threshold_bytes)

    def compared(self) -> dict[str, str | int | float | bool | None]:
        """Values that ranks compare in the handshake: not as written, but what follows from them."""
        values = {name: getattr(self, name) for name in validation.fields_with(RingConfig, EQUAL)}
        if self.codec == "none":  # without effect then
            values |= {"allow_lossy": None, "threshold_bytes": None}
        if self.tree_bytes != "auto":
            values["tree_bytes"] = self.tree_bytes_where(self.tree_bytes)
        return values

    def make_codec(self) -> Codec:
        """Codec chosen by name. A `ValueError` says which setting does not fit it."""
        return registry.make(
            self.codec,
            level=self.codec_level,
            acceleration=self.codec_acceleration,
            shuffle=self.codec_shuffle,
            fraction=self.topk_fraction,
        )

    def load_protection(self) -> Protection:
        """Read the key or the certificates. A `ConfigError` says what is wrong with them."""
        if contradiction := self._contradiction():  # the environment may have changed since validation
            raise ConfigError(contradiction)
        name, origin = self._key_name()
        if self.encrypt:
            cipher(bytes(KEY_BYTES))  # fails now, not in the handshake, if the package is missing
        return Protection(
            secrets=() if name is None else load_keys(file_named(name, origin=origin), origin=origin),
            encrypt=self.encrypt,
            tls=None if self.tls is None else self.tls.load(),
            insecure=self._open_to_all()[0],
            run_id=self.run_id,
            checksum=None if self.checksum == "auto" else self.checksum,
        )

    @property
    def says_who_may_join(self) -> bool:
        """Whether a key, certificates or `insecure` is set, here or in the environment."""
        return self._key_name()[0] is not None or self.tls is not None or self._open_to_all()[0]

    def _key_name(self) -> tuple[str | None, str]:
        """Key file, and the setting or variable that names it."""
        if self.key_file is not None:
            return str(self.key_file), "key_file"
        return os.environ.get(KEY_VARIABLE) or None, KEY_VARIABLE

    def _open_to_all(self) -> tuple[bool, str]:
        """Whether the ring is open to all, and the setting or variable that says so."""
        if self.insecure:
            return True, "insecure"
        return os.environ.get(INSECURE_VARIABLE, "").lower() in _YES, INSECURE_VARIABLE

    @model_validator(mode="after")
    def _protection_is_of_one_kind(self) -> Self:
        if contradiction := self._contradiction():
            raise ValueError(contradiction)
        return self

    def _contradiction(self) -> str | None:
        name, origin = self._key_name()
        said = os.environ.get(INSECURE_VARIABLE, "")
        if said.lower() not in (*_YES, *_NO):
            return f"{INSECURE_VARIABLE}: {concealed(said)!r}: write 1 if everybody on the network may join, or 0"
        if self.encrypt and self.tls is not None:
            return "encrypt and tls both encrypt: choose encrypt with a key_file, or tls with certificates"
        if self.encrypt and name is None:
            return (
                "encrypt needs the key that all ranks share: "
                f"set key_file (or {KEY_VARIABLE}) to a file made by `{KEYGEN}`"
            )
        for guard, given in ((origin, name), ("tls", self.tls)):
            anybody, by = self._open_to_all()
            if anybody and given is not None:
                return f"{by} lets anybody join, {guard} only those whom you trust; remove one of the two"
        return None

    @model_validator(mode="after")
    def _tree_bytes_need_auto(self) -> Self:
        if self.algorithm != "auto" and self.tree_bytes != "auto":
            raise ValueError(
                f"tree_bytes only matters with algorithm 'auto', not {self.algorithm!r}; remove one of the two"
            )
        return self


def from_environment(environ: Mapping[str, str]) -> RingConfig:
    """Settings of a ring for a program that has no file and no options for them.

    RINGWIDE_CONFIG names a YAML file with the keys of a ring, RINGWIDE_SET changes some of them:
    "codec=int8 allow_lossy=true". A `ConfigError` names the variable, the line and the key.
    """
    document = validation.overridden(_file_of(environ), _changes_of(environ), _BY_VARIABLE)
    return validation.checked(document, RingConfig)


def _file_of(environ: Mapping[str, str]) -> Document:
    name = environ.get(FILE_VARIABLE)
    if not name:
        return Document(Path("the environment"), {}, {(): "the environment"})
    kind = DocumentKind("the settings of the ring", "lanes: 2", named_by=f"{FILE_VARIABLE}: ")
    return read_document(file_named(name, origin=FILE_VARIABLE), kind)


def _changes_of(environ: Mapping[str, str]) -> list[str]:
    """Changes in RINGWIDE_SET. Each may be written as for --set, ring.lanes=2; a value with spaces needs quotes."""
    text = environ.get(SET_VARIABLE, "")
    try:
        return [change.removeprefix("ring.") for change in shlex.split(text)]
    except ValueError as error:
        raise ConfigError(f"{SET_VARIABLE}: {concealed(text)!r}: {error}; {_BY_VARIABLE.example}") from error
