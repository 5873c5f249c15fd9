"""The settings of a ring: flat, each with its unit in its name and a default that is good.

Sizes may be written as integers or as text with a unit (`"1MiB"`, `"512 KB"`). Everything is checked when it is
loaded; unknown keys are errors. Rooms below this one take plain arguments, never these objects.
"""

from typing import Literal, Self

from pydantic import BaseModel, ByteSize, ConfigDict, Field, model_validator

KIB = 1024
MIB = 1024 * KIB


class RingConfig(BaseModel):
    """How one rank joins a ring and moves bytes round it. Ranks that meet compare what must be equal."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    segment_bytes: ByteSize = Field(
        default=ByteSize(1 * MIB),
        ge=4 * KIB,
        le=64 * MIB,
        description="What is sent, added and passed on as one piece.",
    )
    buffer_bytes: ByteSize = Field(
        default=ByteSize(4 * MIB),
        ge=16 * KIB,
        le=1024 * MIB,
        description="Socket buffers, asked for in both directions.",
    )
    lanes: int = Field(
        default=1, ge=1, le=64, description="Connections to each neighbour; a tensor is striped over them."
    )
    algorithm: Literal["auto", "ring", "doubling"] = Field(
        default="auto", description="auto: recursive doubling up to doubling_bytes, the segmented ring above."
    )
    doubling_bytes: ByteSize = Field(
        default=ByteSize(256 * KIB),
        ge=0,
        le=256 * KIB,  # what an express lane carries as one frame
        description="The largest bucket that auto sends by recursive doubling.",
    )
    half_precision: Literal["float32", "native"] = Field(
        default="float32", description="The precision in which float16 and bfloat16 are summed."
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
    keepalive_seconds: int = Field(
        default=10, ge=1, le=7_200, description="Silence before the kernel probes a connection."
    )
    user_timeout_seconds: float = Field(
        default=30.0,
        ge=1,
        le=3_600,
        description="Sent but unacknowledged for this long: the kernel ends the connection.",
    )
    linger_seconds: float = Field(
        default=50e-6,
        ge=0,
        le=0.01,
        description="How long a small collective looks for its answer before it sleeps, if each rank has a core.",
    )
    listen: str | None = Field(
        default=None, description='"host:port" to listen on where it differs from this rank\'s line in the peers file.'
    )
    insecure: bool = Field(default=False, description="Allow listening beyond loopback without a key.")

    @model_validator(mode="after")
    def _doubling_needs_its_algorithm(self) -> Self:
        if self.algorithm != "auto" and "doubling_bytes" in self.model_fields_set:
            raise ValueError(
                f"doubling_bytes only matters with algorithm 'auto', not {self.algorithm!r}; remove one of the two"
            )
        return self


def settings_table() -> str:
    """Every setting of a ring as a row of Markdown."""
    rows = [
        f"| `{name}` | `{_as_written(field.default)}` | {field.description} |"
        for name, field in RingConfig.model_fields.items()
    ]
    return "\n".join(["| setting | default | |", "| --- | --- | --- |", *rows])


def _as_written(default: object) -> str:
    if isinstance(default, ByteSize):
        return default.human_readable(separator=" ") if default else "0"
    return "none" if default is None else str(default).lower() if isinstance(default, bool) else str(default)
