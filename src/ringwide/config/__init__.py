"""Configuration: reading, overriding and validating YAML settings, and the settings of a ring."""

from __future__ import annotations  # so that the names below need not be there

from typing import TYPE_CHECKING, Literal, TypedDict

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from ringwide.bootstrap.unix_sockets import SameHost
    from ringwide.config.validation import Settings

    File = str | os.PathLike[str]

CodecName = Literal["none", "lz4", "lz4-frame", "zlib", "bf16", "fp16", "int8", "topk", "auto"]


class RingArguments(TypedDict, total=False):
    """Arguments of `RingConfig` as a type checker should see them.

    They are wider than its fields: a size may be written as text, a file as its name. Here and not beside the fields,
    so that commands can import this package without pydantic.
    """

    segment_bytes: int | str
    buffer_bytes: int | str
    lanes: int
    messages: bool
    algorithm: Literal["auto", "ring", "tree"]
    tree_bytes: int | str
    half_precision: Literal["float32", "native"]
    codec: CodecName
    allow_lossy: bool
    codec_level: int | None
    codec_acceleration: int | None
    codec_shuffle: bool
    topk_fraction: float | None
    threshold_bytes: int | str
    error_feedback: bool | Literal["auto"]
    codec_threads: int | Literal["auto"]
    start_timeout_seconds: float
    collective_timeout_seconds: float
    suspect_after_seconds: float
    warn_after_seconds: float
    checksum: bool | Literal["auto"]
    on_nonfinite: Literal["ignore", "warn", "raise"]
    keepalive_seconds: int
    user_timeout_seconds: float
    linger_seconds: float
    listen: str | None
    same_host: SameHost
    run_id: str
    key_file: File | None
    encrypt: bool
    tls: Settings | Mapping[str, File] | None  # of those, TlsFiles
    insecure: bool
