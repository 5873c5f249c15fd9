"""What the calls of a ring bring to their collectives, and what their callers get."""

from collections.abc import Sequence
from typing import Any, TypeVar

from ringwide.calls import Prepared
from ringwide.collective.plan import Plan
from ringwide.compression.codecs.base import Array
from ringwide.tensors.gather_buffer import GatherBuffer
from ringwide.tensors.leaves import Leaf, memory_of, require_unchanged
from ringwide.tensors.packing import Bundle

T = TypeVar("T")


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


class Share(Prepared[Any]):
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
