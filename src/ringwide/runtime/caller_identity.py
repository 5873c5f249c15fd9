"""Callers: which task or thread made a call, and which of its calls this is.

Ranks pair calls by their order. Within one task the order is that of its program; between tasks it is a matter of
timing, and may differ from rank to rank. So what ranks compare of a call includes who made it: a wrong pairing is then
a `CollectiveMismatch` instead of a wrong number.

Rules:
- The task that joined is the same on every rank, whatever it runs.
- On the default channel, a task made since is known by its descent from the one that joined: which functions run, and
  which number each has among its parent's tasks with that function. A `Descent` notes that, in the loop's task factory.
- A named channel is the program's word that the order of its callers is known. There a caller is known by when it first
  used the channel.
- A thread that calls is known by its name without numbers, and by its age among those with that name.
- Whoever else calls on the default channel cannot be known there: it is refused.
"""

import asyncio
import re
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from hashlib import blake2b
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, ref

STRIDE, MASK = 0x9E37_79B9_7F4A_7C15, 2**64 - 1
"""An odd number without a pattern: the marks of neighbouring calls differ in many bits."""
_DIGITS = re.compile(r"\d+")
_LONGEST_PATH = 200
"""Tasks that make tasks that make tasks: a longer way is known by its digest."""
AnyTask = asyncio.Task[Any]
AnyCoroutine = Coroutine[Any, Any, Any] | Generator[Any, None, Any]
TaskFactory = Callable[..., Any]


class NoTask:
    """The caller of what is called outside of any task, by a callback of the event loop."""


NO_TASK = NoTask()
UNKNOWN = "nobody that other ranks could know"
"""The caller on the default channel that does not descend from the one that joined."""


class Behalf(NamedTuple):
    """Who calls, where that is not the running task; and on which channel, if the caller names none."""

    who: object
    channel: str = ""


acting_for: ContextVar[Behalf | None] = ContextVar("acting_for", default=None)
"""Set while a ring's method is called for somebody else, a thread for example."""


class Caller:
    """One task or thread on one channel, and how many calls it has made there."""

    __slots__ = ("calls", "seed", "title")

    def __init__(self, title: str) -> None:
        self.title, self.calls = title, 0
        self.seed = int.from_bytes(blake2b(title.encode(), digest_size=8).digest(), "little")


class Callers:
    """Those who use one channel. `descent`: that of the ring, on its default channel."""

    def __init__(self, descent: "Descent | None" = None) -> None:
        self._descent = descent
        self._known: WeakKeyDictionary[object, Caller] = WeakKeyDictionary()
        self._in_turn = 0
        self._ages: WeakKeyDictionary[threading.Thread, int] = WeakKeyDictionary()
        self._started: Counter[str] = Counter()  # threads, by name
        self._unknown = Caller(UNKNOWN)
        self.joined = self.last_caller = Caller("the one that joined")
        self.last: Callable[[], object | None] = lambda: None  # who has called last, and is known by `last_caller`

    def adopt(self, who: object) -> None:
        """This is the one that joined, though a task did it for it."""
        self._known[who] = self.joined

    def find(self, who: object) -> Caller:
        if self.last() is who:
            return self.last_caller
        caller = self._known.get(who)
        if caller is None:
            caller = self._known[who] = self._new(who)
        self.last, self.last_caller = ref(who), caller
        return caller

    def _new(self, who: object) -> Caller:
        if self._descent is None:
            self._in_turn += 1
            return Caller(f"caller {self._in_turn} of the channel")
        if isinstance(who, threading.Thread):
            return Caller(self._thread_by_age(who))
        path = self._descent.path_of(who) if isinstance(who, asyncio.Task) else None
        if path is None:
            return self._unknown
        return Caller(f"task {path}") if path else self.joined

    def _thread_by_age(self, who: threading.Thread) -> str:
        """Those that are alive when the first of them calls are numbered as they were started, and later ones go on."""
        name = _name_without_numbers(who)
        for thread in (*threading.enumerate(), who):
            if _name_without_numbers(thread) == name and thread not in self._ages:
                self._started[name] += 1
                self._ages[thread] = self._started[name]
        return f"thread {name!r} {self._ages[who]}"

    @property
    def latest(self) -> Caller:
        """Who has called last, if anybody has."""
        return self.joined if self.last_caller is self._unknown else self.last_caller


def _name_without_numbers(thread: threading.Thread) -> str:
    return _DIGITS.sub("N", thread.name)


class _Line:
    """What a task descends from: of each ring that one of its ancestors has joined, the way down from there."""

    __slots__ = ("made", "paths")

    def __init__(self, paths: "dict[Descent, str]") -> None:
        self.paths = paths
        self.made: dict[Descent, Counter[str]] = {}  # tasks that it made since it joined, by the function that they run

    def child(self, function: str) -> "_Line":
        return _Line({descent: _extended(path, self._step(descent, function)) for descent, path in self.paths.items()})

    def _step(self, descent: "Descent", function: str) -> str:
        made = self.made.setdefault(descent, Counter())
        made[function] += 1
        return f"{function} {made[function]}"


def _extended(path: str, step: str) -> str:
    longer = f"{path} > {step}" if path else step
    if len(longer) <= _LONGEST_PATH:
        return longer
    return f"{blake2b(path.encode(), digest_size=8).hexdigest()} > {step}"


_lines: "WeakKeyDictionary[AnyTask, _Line]" = WeakKeyDictionary()


class Descent:
    """The tasks of one ring's program, by how they descend from the one that joined."""

    def path_of(self, task: AnyTask) -> str | None:
        """The way down from the one that joined, "" for that one itself. None: it does not descend from it."""
        line = _lines.get(task)
        return None if line is None else line.paths.get(self)


@contextmanager
def noted_descent() -> Iterator[Descent]:
    """For the length of the block, tasks that descend from this one are noted."""
    descent, task, loop = Descent(), asyncio.current_task(), asyncio.get_running_loop()
    if task is None:
        yield descent
        return
    line = _lines.setdefault(task, _Line({}))
    line.paths[descent] = ""
    _begin_noting(loop)
    try:
        yield descent
    finally:
        del line.paths[descent]
        line.made.pop(descent, None)
        _end_noting(loop)


class _Noting:
    """The task factory of a loop that has rings: the one that was there before, and a note of who made which task."""

    def __init__(self, before: TaskFactory | None) -> None:
        self.before, self.rings = before, 0

    def __call__(self, loop: asyncio.AbstractEventLoop, coroutine: AnyCoroutine, /, **given: Any) -> Any:
        if self.before is None:
            task = asyncio.Task(coroutine, loop=loop, **given)
        else:
            task = self.before(loop, coroutine, **given)
        parent = asyncio.current_task(loop)
        line = None if parent is None else _lines.get(parent)
        if line is not None and line.paths:
            _lines[task] = line.child(getattr(coroutine, "__qualname__", type(coroutine).__qualname__))
        return task


_noting: "WeakKeyDictionary[asyncio.AbstractEventLoop, _Noting]" = WeakKeyDictionary()


def _begin_noting(loop: asyncio.AbstractEventLoop) -> None:
    noting = _noting.get(loop)
    if noting is None:
        noting = _noting[loop] = _Noting(loop.get_task_factory())
        loop.set_task_factory(noting)
    noting.rings += 1


def _end_noting(loop: asyncio.AbstractEventLoop) -> None:
    noting = _noting[loop]
    noting.rings -= 1
    if not noting.rings:
        del _noting[loop]
        current: object = loop.get_task_factory()
        if current is noting:  # unless the program has set another one meanwhile
            loop.set_task_factory(noting.before)
