"""What can go wrong, whose fault it is, and whether the ring still works afterwards.

    RingwideError
    ├── ConfigError             yours: a setting or a peers file; nothing was started     exit 2
    ├── JoinError               the ring did not form; start again                        exit 3
    │   ├── AddressError            an address cannot be used or found
    │   ├── Disagreement            two ranks were started differently (names the field)
    │   └── StartTimeout            some ranks never came
    ├── CollectiveError         one collective failed; tensors hold what they held        exit 4
    │   ├── CollectiveMismatch      ranks asked for different things; the ring works on
    │   │   └── MessageMismatch         ... one of a message and another of where it goes
    │   ├── CollectiveAborted       another rank gave up on it; the ring works on
    │   ├── CollectiveTimeout       no progress until the deadline; the ring works on
    │   ├── NonfiniteInput          NaN or infinity, and on_nonfinite: raise; the ring works on
    │   └── TensorInUse             yours: another open call has the same memory; the ring works on
    ├── PeerLost                a peer is gone; this ring is over, join a new one         exit 5
    │   └── PeerLeft                ... and it said goodbye first
    ├── RemoteProtocolError     a peer sent bytes that break the rules; ring over         exit 6
    │   └── CorruptFrame            ... because they were damaged on their way
    └── RingClosed              yours: the ring was used after it was left                exit 7

Every error carries its facts as attributes and builds one sentence that a person can act on. A wrong *number* has no
error of its own: it must never get that far (`ringwide.node`, which looks for one, ends with exit code 1).
"""

from collections.abc import Sequence
from types import WrapperDescriptorType
from typing import TypeVar

Error = TypeVar("Error", bound=BaseException)


def ranks_named(ranks: Sequence[int]) -> str:
    return ", ".join(f"rank {rank}" for rank in ranks) or "nobody in particular"


def fresh(error: Error) -> Error:
    """A copy without traceback and context: raised as often as one likes, it keeps no frame and no tensor alive."""
    kind = type(error)
    copy = kind.__new__(kind, *error.args)
    _native_init_of(kind)(copy, *error.args)  # ours would build the sentence anew, from facts that it is not given
    vars(copy).update(vars(error))
    copy.__cause__ = error.__cause__
    return copy


def _native_init_of(kind: type[BaseException]) -> WrapperDescriptorType:
    found = (vars(base)["__init__"] for base in kind.__mro__ if "__init__" in vars(base))
    return next(init for init in found if isinstance(init, WrapperDescriptorType))


class RingwideError(RuntimeError):
    """Anything this package raises on purpose. A RuntimeError, because backends of torch.distributed raise those."""

    exit_code = 1


class ConfigError(RingwideError):
    """A setting, an argument or a file of yours is wrong; the text says which and what would be right."""

    exit_code = 2


class JoinError(RingwideError):
    """The ring did not form."""

    exit_code = 3


class AddressError(JoinError):
    """An address that cannot be listened on, or that does not resolve."""

    def __init__(self, address: str, problem: str) -> None:
        super().__init__(f"{address}: {problem}")
        self.address = address


class Disagreement(JoinError):
    """Two ranks were started with different ideas of the ring. Both of them get this error."""

    def __init__(self, *, field: str, ours: object, theirs: object, rank: int, peer: str) -> None:
        super().__init__(
            f"{field}: this is rank {rank} with {ours!r}, but {peer} has {theirs!r}"
            + ("" if field.startswith("rank") else "; start both with the same")
        )
        self.field, self.ours, self.theirs, self.rank, self.peer = field, ours, theirs, rank, peer


class StartTimeout(JoinError):
    """Some ranks did not come in time."""

    def __init__(
        self, *, rank: int, missing: Sequence[str], seconds: float, limit: str = "start_timeout_seconds"
    ) -> None:
        super().__init__(f"rank {rank} waited {seconds:g} s ({limit}) for {', '.join(missing)}")
        self.rank, self.missing = rank, tuple(missing)


def _named(number: int, what: str) -> str:
    return f"collective {number} {what}" if number else what


class CollectiveError(RingwideError):
    """One collective, or a message (its number is 0), failed on this rank. The tensors given to it are unchanged."""

    exit_code = 4

    def __init__(self, message: str, *, number: int) -> None:
        super().__init__(message)
        self.number = number


class CollectiveMismatch(CollectiveError):
    """Ranks disagree on what they compute together: a bug in the program that calls us."""

    def __init__(self, *, number: int, rank: int, ours: str, other_rank: int, theirs: str) -> None:
        super().__init__(
            f"collective {number}: rank {rank} called {ours}, but rank {other_rank} called {theirs}; "
            "every rank must make the same calls in the same order",
            number=number,
        )
        self.rank, self.ours, self.other_rank, self.theirs = rank, ours, other_rank, theirs


class MessageMismatch(CollectiveMismatch):
    """What one rank sent is not what the other was about to receive. Both of them get this error."""

    def __init__(self, *, tag: int, sender: int, sent: str, receiver: int, expected: str, rank: int) -> None:
        ours, theirs = (sent, expected) if rank == sender else (expected, sent)
        other = receiver if rank == sender else sender
        super().__init__(number=0, rank=rank, ours=ours, other_rank=other, theirs=theirs)
        self.args = (
            f"a message with tag {tag}: rank {sender} sends {sent}, but rank {receiver} receives {expected}; "
            "both must have the same dtype and as many elements",
        )
        self.tag, self.sender, self.receiver, self.sent, self.expected = tag, sender, receiver, sent, expected


class CollectiveAborted(CollectiveError):
    """Another rank gave up on this collective, for example because its task was cancelled."""

    def __init__(self, *, number: int, what: str, by: int, reason: str) -> None:
        super().__init__(f"{_named(number, what)}: rank {by} gave up: {reason}", number=number)
        self.by, self.reason = by, reason


class CollectiveTimeout(CollectiveError):
    """Nothing moved for `collective_timeout_seconds`."""

    def __init__(self, *, number: int, what: str, waiting_for: Sequence[int], seconds: float) -> None:
        super().__init__(
            f"{_named(number, what)}: no progress for {seconds:g} s (collective_timeout_seconds), "
            f"waiting for {ranks_named(waiting_for)}",
            number=number,
        )
        self.waiting_for = tuple(waiting_for)


class NonfiniteInput(CollectiveError):
    """This rank brought NaN or infinity, and `on_nonfinite` is `raise`. The others get `CollectiveAborted`."""

    def __init__(self, *, number: int, rank: int, tensor: str, index: tuple[int, ...], value: float) -> None:
        super().__init__(
            f"collective {number}: rank {rank} brings {value} in {tensor} at {list(index)} (on_nonfinite: raise)",
            number=number,
        )
        self.rank, self.tensor, self.index, self.value = rank, tensor, index, value


class TensorInUse(CollectiveError):
    """Memory that an open call reads or writes was given to another one. The others get `CollectiveAborted`."""

    def __init__(self, *, number: int, what: str) -> None:
        super().__init__(
            f"{_named(number, what)}: some of its memory belongs to a call that is still open; "
            "await that call before this one, or pass a copy",
            number=number,
        )


class PeerLost(RingwideError):
    """A peer's connection ended without a goodbye. Tensors are unchanged; this ring is over."""

    exit_code = 5

    def __init__(self, *, rank: int, reason: str) -> None:
        super().__init__(f"rank {rank} is lost: {reason}")
        self.rank, self.reason = rank, reason


class PeerLeft(PeerLost):
    """A peer said goodbye while others still needed it."""

    def __init__(self, *, rank: int, reason: str) -> None:
        super().__init__(rank=rank, reason=reason)
        self.args = (f"rank {rank} left the ring: {reason}",)


class RemoteProtocolError(RingwideError):
    """A peer, or a stranger, sent bytes that this protocol does not allow."""

    exit_code = 6


class CorruptFrame(RemoteProtocolError):
    """Bytes were damaged, cut out, repeated or swapped between a peer and us: a checksum does not fit."""


class RingClosed(RingwideError):
    """The ring was used outside its `async with` block."""

    exit_code = 7
