"""One collective under way on one rank."""

from collections.abc import Callable

from ringwide.collective.express import ExpressOperation
from ringwide.collective.operation import Operation
from ringwide.collective.plan import Plan
from ringwide.errors import RingwideError

Done = Callable[[RingwideError | None], None]


class Collective:
    """One collective under way on this rank: its operations, one a bucket, succeed or fail together."""

    __slots__ = (
        "begun",
        "begun_at",
        "number",
        "on_done",
        "operations",
        "plan",
        "progress_at",
        "progress_seen",
        "succeeded",
        "told",
        "unfinished",
        "warned_at",
    )

    def __init__(self, number: int, plan: Plan, on_done: Done) -> None:
        self.number, self.plan, self.on_done = number, plan, on_done
        self.operations: list[Operation | ExpressOperation] = []
        self.succeeded: list[Operation | ExpressOperation] = []  # the same, when it is over: for an undo
        self.unfinished = len(plan.parts)
        self.begun, self.begun_at = False, 0.0
        self.told = False  # the other ranks know what we were called with
        self.progress_seen = -1
        self.progress_at = self.warned_at = 0.0

    def __repr__(self) -> str:
        return f"<Collective {self.number} {self.plan.what}>"

    def undo(self) -> None:
        """Its caller was cancelled before it heard of the success, and must find its tensors as they were."""
        for operation in self.succeeded:
            operation.undo()

    def waiting_for(self) -> list[int]:
        if len(self.operations) == 1:
            return self.operations[0].waiting_for()
        return sorted({peer for operation in self.operations for peer in operation.waiting_for()})
