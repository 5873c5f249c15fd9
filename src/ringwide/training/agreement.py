"""Agreement of all ranks: on settings and data before the first step, on the parameters while they train, on the end.

All that is decided here follows from what was gathered from everyone, so all ranks decide the same.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

import torch
from torch import Tensor

from ringwide.errors import ConfigError, RingwideError, ranks_named
from ringwide.protocol.frame import words_in
from ringwide.tensors.arithmetic import OpName
from ringwide.training.config import TrainingConfig
from ringwide.training.learner import Learner, memory_of
from ringwide.training.progress import StopRequest
from ringwide.training.samples import Data

Outcome = TypeVar("Outcome")


class Agrees(Protocol):
    @property
    def rank(self) -> int: ...
    async def allreduce(self, tensors: Any, op: OpName = "mean", *, bucket: str = "") -> Any: ...
    async def all_gather(self, tensor: Any) -> list[Any]: ...


class Gathers(Protocol):
    async def all_gather(self, tensor: Any) -> list[Any]: ...


async def gather_bytes(ring: Gathers, ours: bytes) -> list[bytes]:
    """Bytes of every rank, which all have the same number of them."""
    sent = torch.frombuffer(bytearray(ours), dtype=torch.uint8)
    return [theirs.numpy().tobytes() for theirs in await ring.all_gather(sent)]


async def gather_texts(ring: Gathers, ours: str) -> list[str]:
    """Text of every rank, of any length. If none has anything to say, only the lengths travel."""
    encoded = ours.encode()
    lengths = [int(theirs[0]) for theirs in await ring.all_gather(torch.tensor([len(encoded)]))]
    if not any(lengths):
        return [""] * len(lengths)
    everyone = await gather_bytes(ring, encoded.ljust(max(lengths)))
    return [words_in(theirs[:length]) for theirs, length in zip(everyone, lengths, strict=True)]


async def together(ring: Gathers, act: Callable[[], Outcome]) -> Outcome:
    """Result of `act`. A `ConfigError` that it raises on any rank is raised on all."""
    trouble, result = "", None
    try:
        result = act()
    except ConfigError as error:
        trouble = str(error)
    told = await gather_texts(ring, trouble)
    for rank, text in enumerate(told):
        if text:
            raise ConfigError(f"rank {rank}: {text}" if len(told) > 1 else text)
    return cast(Outcome, result)


# -- before the first step

DIGEST_BYTES = 32


async def agree(
    ring: Agrees, config: TrainingConfig, data: Data, *, saves_every: int | None = None, resumes: bool = False
) -> bytes:
    """Check that all ranks have the same settings and data. Returns the data's fingerprint, which is slow to make."""
    fingerprint = data.fingerprint()
    ours = {
        "settings under 'training'": _digest(config.model_dump(mode="json")),
        "'checkpoint.every_steps'": _digest(saves_every),
        "use of --resume": _digest(resumes),
        f"data {config.data!r}": fingerprint,
    }
    everyone = await gather_bytes(ring, b"".join(ours.values()))
    for index, what in enumerate(ours):
        part = slice(index * DIGEST_BYTES, (index + 1) * DIGEST_BYTES)
        _require_equal(ring.rank, [given[part] for given in everyone], what)
    return fingerprint


def _digest(value: Any) -> bytes:
    """Digest of a value, independent of the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).digest()


def _require_equal(rank: int, given: list[bytes], what: str) -> None:
    differing = [other for other, theirs in enumerate(given) if theirs != given[0]]
    if differing:
        named = ", ".join(map(str, differing))
        raise ConfigError(
            f"training: rank {named} has other {what} than rank 0 (this is rank {rank}); give every node the same"
            " experiment file and command line, the same files to read and the same version of Python"
        )


# -- while they train

REPLICA_BYTES = 8  # of a digest: enough to tell two sets of parameters apart


class ReplicaCheck:
    """Comparison of the parameters of all ranks, to the bit.

    Ranks make the same steps from the same start, so whatever differs was changed by something else: a layer that
    writes to its weights in its forward pass, for example. Only digests travel: 8 bytes for each bucket.
    """

    def __init__(self, ring: Agrees, learner: Learner, *, every_steps: int, first_step: int) -> None:
        self._ring, self._every, self._first_step = ring, every_steps, first_step
        frozen = {name: each for name, each in learner.model.named_parameters() if not each.requires_grad}
        self._parts = [
            (f"bucket {bucket.name!r}", dict(zip(bucket.names, bucket.members, strict=True)))
            for bucket in learner.buckets
        ]
        self._places = {name: _places(member) for _, members in self._parts for name, member in members.items()}
        if frozen:
            self._parts.append(("frozen", frozen))
        self._model, self._frozen = learner.model, frozen
        self._known = {id(member) for _, members in self._parts for member in members.values()}
        self._compared = first_step - 1

    def is_due(self, step: int) -> bool:
        """After the 1st, 2nd, 4th, 8th ... step of a run, and then at regular intervals."""
        made = step - self._first_step + 1
        return step % self._every == 0 or made & (made - 1) == 0

    async def compare(self, step: int) -> None:
        """Raise on all ranks if any has other parameters after this step."""
        if self._compared == step:
            return
        self._compared = step
        self._require_in_place()
        part = await self._first_difference([members.values() for _, members in self._parts])
        if part is None:
            return
        where, members = self._parts[part[0]]
        index, ranks = await self._first_difference([[member] for member in members.values()]) or (0, part[1])
        raise RingwideError(
            f"after step {step} parameter {list(members)[index]!r} ({where}) of {ranks_named(ranks)} differs from that"
            " of the others: something beside the optimizer changes it, on each rank by its own samples, such as"
            " nn.Embedding(max_norm=...) or a layer that writes to its weights in its forward pass; no checkpoint has"
            " been written since they differ"
        )

    async def _first_difference(self, parts: Sequence[Iterable[Tensor]]) -> tuple[int, list[int]] | None:
        """Index of the first part that is not the same everywhere, and the ranks with which most others disagree."""
        everyone = await gather_bytes(self._ring, b"".join(map(_short_digest, parts)))
        for index in range(len(parts)):
            given = [theirs[index * REPLICA_BYTES : (index + 1) * REPLICA_BYTES] for theirs in everyone]
            usual, count = Counter(given).most_common(1)[0]
            if count < len(given):
                return index, [rank for rank, theirs in enumerate(given) if theirs != usual]
        return None

    def _require_in_place(self) -> None:
        """Raise if a parameter or its gradient is not the one in its bucket, or has none: it would not be trained."""
        for name, parameter in self._model.named_parameters():
            if id(parameter) not in self._known:
                raise ConfigError(
                    f"training.model: parameter {name!r} was not there when the training began, so that it is not"
                    " trained, and each rank has its own; create all parameters in __init__, as lazy modules do"
                )
        for name, parameter in self._frozen.items():
            if parameter.requires_grad:
                raise ConfigError(
                    f"training.model: parameter {name!r} was frozen when the training began, so that it is not trained;"
                    " let requires_grad be true from the start, and detach() what is not to be learnt yet"
                )
        for where, members in self._parts:
            for name, member in members.items():
                if _places(member) != self._places.get(name, _places(member)):
                    raise ConfigError(
                        f"training.model: parameter {name!r} ({where}) or its gradient was replaced by another tensor,"
                        " so that it is not trained any more; change both in place: with copy_ instead of .data ="
                        " or .grad =, and without zero_grad, which the training does itself"
                    )


def _places(parameter: Tensor) -> tuple[int, int]:
    return parameter.data_ptr(), 0 if parameter.grad is None else parameter.grad.data_ptr()


def _short_digest(tensors: Iterable[Tensor]) -> bytes:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(memory_of(tensor))
    return digest.digest()[:REPLICA_BYTES]


# -- when to stop
#
# Ranks ask each other by an all-reduce: what is the longest time any has trained, and the highest signal any has got?
# Asking after every step would double the collectives of a small model. So they ask a few times a second, after steps
# that all ranks derive from the previous answers, which are the same everywhere.
#
# The speed of the next steps can only be guessed from the last ones. So that a model that turns slow still stops, ranks
# ask at the latest after MOST_STEPS, and at most that many steps pass between a signal and the end. Up to 250 steps a
# second this bound changes nothing; above that one collective in 26 is a question.

ASK_EVERY_SECONDS = 0.1
FASTEST_GROWTH = 2
MOST_STEPS = 25


@dataclass(frozen=True, slots=True)
class StopNote:
    """Answer that all ranks have after asking at `step`."""

    step: int
    seconds: float = 0.0
    signal: int = 0


class StopAgreement:
    """One rank's part in the agreement. `stop` holds its signal; `limit` is the time after which to stop."""

    def __init__(
        self, ring: Agrees, *, seconds: Callable[[], float], stop: StopRequest, limit: float | None, first_step: int
    ) -> None:
        self._ring, self._seconds, self._stop, self._limit = ring, seconds, stop, limit
        self._last = StopNote(first_step - 1)
        self._interval = 1

    @property
    def signal(self) -> int:
        """Signal for which all ranks have agreed to stop; 0: none."""
        return self._last.signal

    def is_due(self, step: int) -> bool:
        return step >= self._last.step + self._interval

    async def ask(self, step: int) -> bool:
        """Ask all ranks. True if all stop after this step."""
        ours = torch.tensor([self._seconds(), float(self._stop.signal)], dtype=torch.float64)
        seconds, signal = (await self._ring.allreduce(ours, op="max")).tolist()
        note = StopNote(step, seconds, int(signal))
        self._interval = _interval(self._last, note, self._limit)
        self._last = note
        return bool(note.signal) or (self._limit is not None and note.seconds >= self._limit)


def _interval(last: StopNote, now: StopNote, limit: float | None) -> int:
    """Number of steps until the next question: as many as fit into its interval, and not past the time limit."""
    steps, seconds = now.step - last.step, now.seconds - last.seconds
    most = min(steps * FASTEST_GROWTH, MOST_STEPS)
    if seconds <= 0:
        return most
    interval = ASK_EVERY_SECONDS if limit is None else min(ASK_EVERY_SECONDS, limit - now.seconds)
    return max(1, int(min(interval * steps / seconds, most)))
