"""Errors of ringwide: whose fault each is, and whether the ring still works afterwards.

    RingwideError
    ├── ConfigError             yours: a setting or a peers file; nothing was started     exit 2
    │   └── TorchMissing            ... or torch, which this needs, is not installed
    ├── JoinError               the ring did not form; start again                        exit 3
    │   ├── AddressError            an address cannot be used or found
    │   ├── Disagreement            two ranks have different settings (names the field)
    │   └── StartTimeout            some ranks did not come in time
    ├── CollectiveError         one collective failed; tensors are unchanged              exit 4
    │   ├── CollectiveMismatch      ranks asked for different things; the ring still works
    │   │   └── MessageMismatch         ... a message does not fit its receiver
    │   ├── CollectiveAborted       another rank gave up on it; the ring still works
    │   ├── CollectiveTimeout       no progress until the deadline; the ring still works
    │   ├── NonfiniteInput          NaN or infinity, and on_nonfinite: raise; the ring still works
    │   └── TensorInUse             yours: another open call has the same memory; the ring still works
    ├── PeerLost                a peer is gone; this ring is over, join a new one         exit 5
    │   └── PeerLeft                ... and it said goodbye first
    ├── RemoteProtocolError     a peer broke the protocol; this ring is over              exit 6
    │   └── CorruptFrame            ... because its bytes were damaged in transit
    └── RingClosed              yours: the ring was used after it was left                exit 7

Every error has its data as attributes and forms one sentence that a person can act on. There is no error for a wrong
*number*, which must never happen: `ringwide.node`, which checks for one, exits with code 1.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from types import WrapperDescriptorType
from typing import TypeVar

Error = TypeVar("Error", bound=BaseException)


def ranks_named(ranks: Sequence[int]) -> str:
    return ", ".join(f"rank {rank}" for rank in ranks) or "nobody in particular"


def fresh(error: Error) -> Error:
    """Copy without traceback and context, which can be raised repeatedly without keeping frames or tensors alive.

    An error of the user's that cannot be copied, because its `__new__` takes other arguments, is returned itself.
    """
    kind = type(error)
    try:
        copy = kind.__new__(kind, *error.args)
        _native_init_of(kind)(copy, *error.args)  # our own __init__ would need the data to build the sentence again
    except Exception:
        error.__context__ = None
        return error.with_traceback(None)
    vars(copy).update(vars(error))
    copy.__cause__ = error.__cause__
    return copy


def _native_init_of(kind: type[BaseException]) -> WrapperDescriptorType:
    found = (vars(base)["__init__"] for base in kind.__mro__ if "__init__" in vars(base))
    return next(init for init in found if isinstance(init, WrapperDescriptorType))


class RingwideError(RuntimeError):
    """Base of all errors of this package. A RuntimeError, because backends of torch.distributed raise those."""

    exit_code = 1


class ConfigError(RingwideError):
    """A setting, an argument or a file of the user is wrong; the text says which and what would be right."""

    exit_code = 2


class TorchMissing(ConfigError, ImportError):
    """Something needs torch, which is not installed. An ImportError too: programs that can do without catch those."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} needs torch, which is not installed: pip install 'ringwide[torch]'")
        self.name = "torch"


def has_torch() -> bool:
    """Whether torch is installed. It is not imported for that, as a ring of numpy arrays never needs it."""
    return find_spec("torch") is not None


def require_torch(what: str) -> None:
    if not has_torch():
        raise TorchMissing(what)


class JoinError(RingwideError):
    """The ring did not form."""

    exit_code = 3


class AddressError(JoinError):
    """An address that cannot be listened on, or that does not resolve."""

    def __init__(self, address: str, problem: str) -> None:
        super().__init__(f"{address}: {problem}")
        self.address = address


class Disagreement(JoinError):
    """Two ranks have different settings for the ring. Both get this error."""

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
        super().__init__(f"rank {rank} timed out: it waited {seconds:g} s ({limit}) for {', '.join(missing)}")
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
    """Ranks called different collectives: a bug in the calling program."""

    def __init__(
        self,
        *,
        number: int,
        rank: int,
        ours: str,
        other_rank: int,
        theirs: str,
        advice: str = "every rank must make the same calls in the same order",
    ) -> None:
        super().__init__(
            f"collective {number}: rank {rank} called {ours}, but rank {other_rank} called {theirs}; {advice}",
            number=number,
        )
        self.rank, self.ours, self.other_rank, self.theirs = rank, ours, other_rank, theirs


class MessageMismatch(CollectiveMismatch):
    """A message does not fit the receiver's tensor. Both ranks get this error."""

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
    """No progress for `collective_timeout_seconds`."""

    def __init__(self, *, number: int, what: str, waiting_for: Sequence[int], seconds: float) -> None:
        super().__init__(
            f"{_named(number, what)}: Timed out after no progress for {seconds:g} s (collective_timeout_seconds), "
            f"waiting for {ranks_named(waiting_for)}",
            number=number,
        )
        self.waiting_for = tuple(waiting_for)


class NonfiniteInput(CollectiveError):
    """This rank passed NaN or infinity, and `on_nonfinite` is `raise`. The others get `CollectiveAborted`."""

    def __init__(self, *, number: int, rank: int, tensor: str, index: tuple[int, ...], value: float) -> None:
        super().__init__(
            f"collective {number}: rank {rank} brings {value} in {tensor} at {list(index)} (on_nonfinite: raise)",
            number=number,
        )
        self.rank, self.tensor, self.index, self.value = rank, tensor, index, value


class TensorInUse(CollectiveError):
    """A call was given memory that another open call uses. The other ranks get `CollectiveAborted`."""

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
    """A peer or a stranger sent bytes that the protocol does not allow."""

    exit_code = 6


class CorruptFrame(RemoteProtocolError):
    """Bytes from a peer were damaged, lost, repeated or reordered: a checksum does not match."""


class RingClosed(RingwideError):
    """The ring was used outside its `async with` block."""

    exit_code = 7
