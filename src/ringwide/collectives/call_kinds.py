"""Prepared calls: what each kind brings to its collective, and what its caller gets."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from ringwide.collectives.plan import Plan
from ringwide.compression.codecs.base import Array
from ringwide.tensors.bucket import Bucket
from ringwide.tensors.leaves import Leaf, memory_of, require_unchanged
from ringwide.tensors.packing import Bundle, GatherBuffer

T = TypeVar("T")


class OtherLoop(RuntimeError):
    """The cause for which a call is given up that is awaited on an event loop where its ring does not live."""


class NeverAwaited(BaseException):
    """The cause for which a call is given up that nobody has awaited, and nobody can any more."""


def reason_of(cause: BaseException) -> str:
    """Why a call was given up, in words for the other ranks."""
    match cause:
        case asyncio.CancelledError():
            return "its task was cancelled"
        case GeneratorExit():
            return "it was closed"
        case NeverAwaited():
            return "it was never awaited"
        case OtherLoop():
            return "it was awaited on another event loop"
    return f"it was interrupted by {type(cause).__name__}"


class Prepared(Generic[T]):
    """What a call brings to its collective, and what becomes of that. This one brings nothing of the caller's."""

    __slots__ = ("numbers", "plan", "value")

    plain = True
    """Its result is there when its collective is over: there is nothing to check, write, give back or go on with."""

    def __init__(self, plan: Plan, numbers: Sequence[Bucket], value: T) -> None:
        self.plan, self.numbers, self.value = plan, numbers, value

    def written(self) -> Sequence[Array]:
        """The caller's memory that it writes to."""
        return ()

    def read(self) -> Sequence[Array]:
        """The caller's memory that it reads until it is over."""
        return ()

    def copied(self) -> Sequence[Array]:
        """The caller's memory of which it has a copy."""
        return ()

    def check(self) -> None:
        """Can the result be written where it belongs? If this raises, nothing of the caller's changes."""

    def commit(self) -> T:
        """Write it there, and say what the caller gets. What was interrupted is done once more, as a whole."""
        return self.value

    def give_back(self) -> None:
        """Memory that was borrowed is free again."""

    def discard(self) -> None:
        """It has failed: this memory is not used again, whatever may still refer to it."""

    def go_on(self, number: int, on_done: "Callable[[Exception | None], None]") -> bool:
        """The collective is over. True: the call is not, and will say when."""
        return False

    def give_up(self, number: int, cause: BaseException) -> None:
        """The call has failed, or nobody wants it any more, though its collective has begun."""


class Packed(Prepared[T]):
    """Tensors as buckets: all that is reduced or broadcast."""

    plain = False
    __slots__ = ("_bundle", "_leaves", "_reads", "_replaces")

    def __init__(
        self, plan: Plan, bundle: Bundle, leaves: Sequence[Leaf], tensors: T, *, replaces: bool, reads: bool
    ) -> None:
        """`replaces`: the result goes into the tensors. `reads`: they are read until it is over."""
        super().__init__(plan, bundle.numbers, tensors)
        self._bundle, self._leaves, self._replaces, self._reads = bundle, leaves, replaces, reads

    def written(self) -> Sequence[Array]:
        return memory_of(self._leaves) if self._replaces else ()

    def read(self) -> Sequence[Array]:
        return memory_of(self._leaves) if self._reads and not self._replaces else ()

    def copied(self) -> Sequence[Array]:
        return () if self._reads or self._replaces else memory_of(self._leaves)

    def check(self) -> None:
        if self._replaces:
            self._bundle.check()

    def commit(self) -> T:
        if self._replaces:
            self._bundle.commit()
        return self.value

    def give_back(self) -> None:
        self._bundle.give_back()

    def discard(self) -> None:
        self._bundle.discard()


class ScatteredShare(Prepared[Any]):
    """A tensor that is reduced, and of which each rank gets a share."""

    plain = False
    __slots__ = ("_bundle", "_leaf", "_place", "_share")

    def __init__(self, plan: Plan, bundle: Bundle, leaf: Leaf, share: slice, place: Leaf | None, into: Any) -> None:
        super().__init__(plan, bundle.numbers, into)
        self._bundle, self._leaf, self._share, self._place = bundle, leaf, share, place

    def written(self) -> Sequence[Array]:
        return memory_of([self._place])

    def copied(self) -> Sequence[Array]:
        return memory_of([self._leaf])

    def check(self) -> None:
        require_unchanged([self._place])

    def commit(self) -> Any:
        reduced = self._bundle.totals()[self._share]
        if self._place is None:
            self.value = self._leaf.like(reduced.copy(), reduced.shape)
        else:
            self._place.store(reduced)
        return self.value

    def give_back(self) -> None:
        self._bundle.give_back()

    def discard(self) -> None:
        self._bundle.discard()


class Gathered(Prepared[Any]):
    """The tensors of all ranks."""

    plain = False
    __slots__ = ("_collected", "_leaf", "_place")

    def __init__(self, plan: Plan, collected: GatherBuffer, leaf: Leaf, place: Leaf | None, into: Any) -> None:
        super().__init__(plan, collected.numbers, into)
        self._collected, self._leaf, self._place = collected, leaf, place

    def written(self) -> Sequence[Array]:
        return memory_of([self._place])

    def copied(self) -> Sequence[Array]:
        return memory_of([self._leaf])

    def check(self) -> None:
        require_unchanged([self._place])

    def commit(self) -> Any:
        parts = self._collected.commit()
        return parts if self._place is None else self.value

    def give_back(self) -> None:
        self._collected.give_back()

    def discard(self) -> None:
        self._collected.discard()
