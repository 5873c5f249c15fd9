"""The settings of a ring: flat, each with its unit in its name and a default that is good.

Sizes may be written as integers or as text with a unit (`"1MiB"`, `"512 KB"`). Everything is checked when it is
loaded; unknown keys are errors. Rooms below this one take plain arguments, never these objects.
"""

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ByteSize,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from ringwide.bootstrap.protection import (
    INSECURE_VARIABLE,
    KEYGEN,
    Protection,
    concealed,
    file_named,
    load_key,
    refuse_keys,
)
from ringwide.bootstrap.protection import VARIABLE as KEY_VARIABLE
from ringwide.bootstrap.same_host import SameHost
from ringwide.compression.codecs import registry
from ringwide.compression.codecs.base import Codec
from ringwide.config.document import Document, DocumentKind, read_document
from ringwide.config.validation import DECIDES_BITS, EQUAL, OverrideSource, checked, fields_that, overridden
from ringwide.errors import ConfigError
from ringwide.transport.aead_wire import KEY_BYTES, cipher
from ringwide.transport.tls import TlsContexts, tls_contexts

CODECS = (*registry.NAMES, "auto")
TREE_LIMIT_BYTES = 256 * 1024
"""What every express lane carries as one frame."""
_SWITCH: tuple[TypeAdapter[Any], str] = TypeAdapter(bool), ", true or false"
_AUTO_OR: dict[str, tuple[TypeAdapter[Any], str]] = {
    "codec_threads": (TypeAdapter(Annotated[int, Field(ge=0, le=64)]), " or a whole number from 0 to 64"),
    "error_feedback": _SWITCH,
    "checksum": _SWITCH,
    "tree_bytes": (TypeAdapter(Annotated[ByteSize, Field(le=TREE_LIMIT_BYTES)]), " or a size of at most 256KiB"),
    "threshold_bytes": (TypeAdapter(ByteSize), " or a size such as 512KiB"),
}
"""The settings that are `auto` or a value of this type, and how that is said."""
FILE_VARIABLE, SET_VARIABLE = "RINGWIDE_CONFIG", "RINGWIDE_SET"
_BY_VARIABLE = OverrideSource(SET_VARIABLE, f"write KEY=VALUE, as in {SET_VARIABLE}='codec=lz4 lanes=2'")
_YES, _NO = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")
KIB = 1024
MIB = 1024 * KIB


class TlsFiles(BaseModel):
    """Where this rank's certificate is, its private key, and the authority that signs those of all ranks (PEM)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cert: Path = Field(description="This rank's certificate, good for both roles of a connection (PEM).")
    key: Path = Field(description="Its private key, without a passphrase, in a file that others cannot read (PEM).")
    ca: Path = Field(description="The certificate of the authority that signs those of all ranks (PEM).")

    @model_validator(mode="before")
    @classmethod
    def _no_key_is_shown(cls, files: object) -> object:
        refuse_keys(files, prefix="tls.")
        return files

    def load(self) -> TlsContexts:
        names = {"cert": self.cert, "key": self.key, "ca": self.ca}
        return tls_contexts(**{name: file_named(str(file), origin=f"tls.{name}") for name, file in names.items()})


class RingConfig(BaseModel):
    """How one rank joins a ring and moves bytes round it. Ranks that meet compare what must be equal."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    segment_bytes: ByteSize = Field(
        default=ByteSize(1 * MIB),
        ge=4 * KIB,
        le=64 * MIB,
        json_schema_extra=EQUAL | DECIDES_BITS,
        description="What is sent, added and passed on as one piece.",
    )
    buffer_bytes: ByteSize = Field(
        default=ByteSize(4 * MIB),
        ge=16 * KIB,
        le=1024 * MIB,
        description="Socket buffers, asked for in both directions.",
    )
    lanes: int = Field(
        default=1,
        ge=1,
        le=64,
        json_schema_extra=EQUAL,
        description="Connections to each neighbour; a tensor is striped over them.",
    )
    messages: bool = Field(
        default=False,
        json_schema_extra=EQUAL,
        description="A lane between every two ranks for send, receive and exchange.",
    )
    algorithm: Literal["auto", "ring", "tree"] = Field(
        default="auto",
        json_schema_extra=EQUAL | DECIDES_BITS,
        description="auto: the tree up to tree_bytes, the segmented ring above.",
    )
    tree_bytes: ByteSize | Literal["auto"] = Field(
        default="auto",
        json_schema_extra=EQUAL | DECIDES_BITS,
        description="The largest bucket that algorithm auto sends by the tree, at most 256 KiB; auto: as it pays where "
        "the ranks are, 64 KiB between hosts, 256 on one, 512 by shared memory and 1024 there if cores are few.",
    )
    half_precision: Literal["float32", "native"] = Field(
        default="float32",
        json_schema_extra=EQUAL | DECIDES_BITS,
        description="The precision in which float16 and bfloat16 are summed.",
    )
    codec: str = Field(
        default="none",
        json_schema_extra={"enum": [*CODECS], **EQUAL, **DECIDES_BITS},
        description=f"How numbers travel: {', '.join(CODECS[:-1])}, or auto: whichever is measured to be fastest.",
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
        default=False, description="Group the bytes of equal place before a lossless codec: smaller for dense floats."
    )
    topk_fraction: float | None = Field(
        default=None,
        json_schema_extra=DECIDES_BITS,
        description="The share of the numbers that topk sends; by default 0.01.",
    )
    threshold_bytes: ByteSize | Literal["auto"] = Field(
        default=ByteSize(512 * KIB),
        json_schema_extra=EQUAL | DECIDES_BITS,
        description="Smaller segments travel raw; auto: those for which the codec does not pay, as measured.",
    )
    error_feedback: bool | Literal["auto"] = Field(
        default="auto",
        json_schema_extra=DECIDES_BITS,
        description="Add what a lossy codec dropped to the same bucket's next numbers; auto: for topk.",
    )
    codec_threads: int | Literal["auto"] = Field(
        default="auto",
        description="Threads that encode and decode; 0: the event loop does it; auto: the cores that ranks leave idle.",
    )
    start_timeout_seconds: float = Field(
        default=60.0, gt=0, le=86_400, description="How long join waits for all ranks."
    )
    collective_timeout_seconds: float = Field(
        default=300.0,
        gt=0,
        le=86_400,
        description="A collective with no progress for this long fails; progress starts it anew.",
    )
    suspect_after_seconds: float = Field(
        default=10.0,
        gt=0,
        le=3_600,
        description="A rank that a collective waits for, and that is silent for this long, is lost; computing is no "
        "silence.",
    )
    warn_after_seconds: float = Field(
        default=10.0,
        gt=0,
        le=86_400,
        description="A collective with no progress for this long is reported, with the ranks that it waits for.",
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
        default=30.0,
        ge=1,
        le=3_600,
        description="A sign of life unacknowledged for this long: the kernel ends the connection.",
    )
    linger_seconds: float = Field(
        default=200e-6,
        ge=0,
        le=0.01,
        description="How long a small collective looks for each answer before it sleeps, if each rank has a core; "
        "the event loop stands still meanwhile.",
    )
    listen: str | None = Field(
        default=None, description='"host:port" to listen on where it differs from this rank\'s line in the peers file.'
    )
    same_host: SameHost = Field(
        default="auto",
        description="How ranks on one machine talk: auto, by memory that they share and Unix-domain sockets where they "
        "can, else by TCP; tcp; or unix, by sockets without shared memory, and a rank that is elsewhere is an error.",
    )
    run_id: str = Field(
        default="",
        max_length=128,
        description="The name of this run; ranks that were started with another are refused.",
    )
    key_file: Path | None = Field(
        default=None,
        description="The key that all ranks share, made by `ringwide keygen`; by default the file that the variable "
        "RINGWIDE_KEY_FILE names.",
    )
    encrypt: bool = Field(default=False, description="Encrypt every frame with keys that come from key_file.")
    tls: TlsFiles | None = Field(
        default=None, description="Mutual TLS 1.3: {cert, key, ca}, the files of this rank's certificate."
    )
    insecure: bool = Field(
        default=False,
        description="Allow listening beyond loopback without a key or certificates; RINGWIDE_INSECURE=1 does as well.",
    )

    @model_validator(mode="before")
    @classmethod
    def _no_key_is_shown(cls, settings: object) -> object:
        """Before pydantic complains of a value, and repeats it. A run's id may be any digest."""
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
    def _is_auto_or_as_it_must_be(cls, value: object, info: ValidationInfo) -> object:
        """Before pydantic tries both types and complains of both."""
        kind, right = _AUTO_OR[info.field_name or ""]
        return value if value == "auto" else _checked(value, kind, f"auto{right}")

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
            self._auto_decides_alone()
        else:
            self.make_codec()
        return self

    def _auto_decides_alone(self) -> None:
        for name in ("codec_level", "codec_acceleration", "codec_shuffle", "topk_fraction"):
            if getattr(self, name) not in (None, False):
                raise ValueError(f"{name} belongs to a codec of your choice; remove it, or name that codec, not auto")

    def tree_bytes_where(self, auto_bytes: int) -> int:
        """The largest bucket for the tree, where `auto` means so many bytes.

        The tree sends raw, so it does not carry what a codec is wanted for.
        """
        wished = auto_bytes if self.tree_bytes == "auto" else self.tree_bytes
        if self.codec == "none":
            return wished
        return min(wished, TREE_LIMIT_BYTES if self.threshold_bytes == "auto" else self.threshold_bytes)

    def compared(self) -> dict[str, str | int | float | bool | None]:
        """What ranks compare when they meet: not what was written, but what follows from it."""
        values = {name: getattr(self, name) for name in fields_that(RingConfig, EQUAL)}
        if self.codec == "none":  # they would mean nothing
            values |= {"allow_lossy": None, "threshold_bytes": None}
        if self.tree_bytes != "auto":
            values["tree_bytes"] = self.tree_bytes_where(self.tree_bytes)
        return values

    def make_codec(self) -> Codec:
        """The codec that was chosen by name. A `ValueError` says which setting does not fit it."""
        return registry.make(
            self.codec,
            level=self.codec_level,
            acceleration=self.codec_acceleration,
            shuffle=self.codec_shuffle,
            fraction=self.topk_fraction,
        )

    def load_protection(self) -> Protection:
        """Reads the files that guard the ring. A `ConfigError` says what is wrong with them."""
        if contradiction := self._contradiction():  # the variable may have changed since
            raise ConfigError(contradiction)
        name, origin = self._key_name()
        if self.encrypt:
            cipher(bytes(KEY_BYTES))  # is its package there? Better asked now than when ranks meet
        return Protection(
            secret=None if name is None else load_key(file_named(name, origin=origin), origin=origin),
            encrypt=self.encrypt,
            tls=None if self.tls is None else self.tls.load(),
            insecure=self._anybody_may_join()[0],
            run_id=self.run_id,
            checksum=None if self.checksum == "auto" else self.checksum,
        )

    @property
    def says_who_may_join(self) -> bool:
        """By a key, by certificates, or by letting everybody in; here, or in the environment."""
        return self._key_name()[0] is not None or self.tls is not None or self._anybody_may_join()[0]

    def _key_name(self) -> tuple[str | None, str]:
        """Which file, and who named it."""
        if self.key_file is not None:
            return str(self.key_file), "key_file"
        return os.environ.get(KEY_VARIABLE) or None, KEY_VARIABLE

    def _anybody_may_join(self) -> tuple[bool, str]:
        """And who said so."""
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
            anybody, by = self._anybody_may_join()
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
    """The settings of a ring for a program that has no file and no option for them.

    RINGWIDE_CONFIG names a YAML file with the keys of a ring, RINGWIDE_SET changes some of them:
    "codec=int8 allow_lossy=true". A `ConfigError` names the variable, the line and the key.
    """
    return checked(overridden(_file_of(environ), _changes_of(environ), _BY_VARIABLE), RingConfig)


def _file_of(environ: Mapping[str, str]) -> Document:
    name = environ.get(FILE_VARIABLE)
    if not name:
        return Document(Path("the environment"), {}, {(): "the environment"})
    sort = DocumentKind("the settings of the ring", "lanes: 2", named_by=f"{FILE_VARIABLE}: ")
    return read_document(file_named(name, origin=FILE_VARIABLE), sort)


def _changes_of(environ: Mapping[str, str]) -> list[str]:
    """Each may be written as for --set, ring.lanes=2; a value with spaces in it stands in quotes."""
    text = environ.get(SET_VARIABLE, "")
    try:
        return [change.removeprefix("ring.") for change in shlex.split(text)]
    except ValueError as error:
        raise ConfigError(f"{SET_VARIABLE}: {concealed(text)!r}: {error}; {_BY_VARIABLE.example}") from error


def _checked(value: object, kind: TypeAdapter[Any], right: str) -> object:
    try:
        return kind.validate_python(value)
    except ValidationError:
        raise ValueError(f"should be {right}") from None
