"""Training loop: every rank computes gradients on its share of the data, and the ring averages them for the step.

python -m ringwide run configs/quickstart.yaml
"""

import math
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import torch

from ringwide.tensors.arithmetic import OpName
from ringwide.training.agreement import ReplicaCheck, StopAgreement, agree
from ringwide.training.checkpoint import Checkpoints, restore_rng, rng_state, seed_rng
from ringwide.training.config import TrainingConfig
from ringwide.training.data_sources import load_data
from ringwide.training.gradient_exchange import GradientExchange, Overlapped, Plain
from ringwide.training.learner import Learner, Settled
from ringwide.training.models import build_model
from ringwide.training.optimizers import learning_rate_at
from ringwide.training.progress import Evaluation, Result, StopRequest, TrainingPlan, TrainingStep
from ringwide.training.resume import ResumeSettings, restore, resume_settings
from ringwide.training.samples import Course, Data, Position, SampleShare
from ringwide.training.step_journal import StepJournal, Stopwatch, Traffic, TrafficSource, agreed_traffic

NO_SETTINGS: Mapping[str, Any] = MappingProxyType({})


class TrainingRing(Protocol):
    """Ring as training needs it."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    async def allreduce(self, tensors: Any, op: OpName = "mean", *, bucket: str = "") -> Any: ...
    async def broadcast(self, tensors: Any, root: int = 0) -> Any: ...
    async def all_gather(self, tensor: Any) -> list[Any]: ...
    async def barrier(self) -> None: ...
    def statistics(self) -> TrafficSource: ...
    def state_dict(self) -> Mapping[str, Any]: ...
    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...
    def algorithm_for(self, nbytes: int) -> str: ...


async def train(
    ring: TrainingRing,
    config: TrainingConfig,
    tell: Callable[[Any], None],
    *,
    stop: StopRequest | None = None,
    checkpoints: Checkpoints | None = None,
    resume: Path | None = None,
    ring_settings: Mapping[str, Any] = NO_SETTINGS,
    clock: Callable[[], float] = time.perf_counter,
) -> Result:
    """Train until the end that `config` names, or until any rank is asked to stop. `tell` gets the progress.

    `ring_settings`: settings that decide the bits of a mean, which must be the same when a run is resumed.
    """
    torch.set_num_threads(1)  # ranks share the cores, so more threads would only compete
    data = load_data(config)
    saves_every = None if checkpoints is None else checkpoints.every_steps
    fingerprint = await agree(ring, config, data, saves_every=saves_every, resumes=resume is not None)
    course = Course(config, samples=len(data.train), rank=ring.rank, size=ring.size)
    async with nullcontext() if checkpoints is None else checkpoints.claim(ring, resume):
        learner = await _same_learner_everywhere(ring, config, data)
        settings = resume_settings(
            config,
            ring,
            learner.buckets,
            ring_settings=ring_settings,
            last_step=course.last_step,
            data=fingerprint,
        )
        start = Position()
        if resume is not None:
            start = await restore(ring, resume, settings, learner, last_step=course.last_step)
            if checkpoints is not None:
                checkpoints.resumed_at(start.step)
        training = Training(
            ring, config, learner, course, settings, start, tell, stop=stop or StopRequest(), clock=clock
        )
        tell(training.plan())
        try:
            return await training.run(checkpoints)
        finally:
            training.exchange.close()


async def _same_learner_everywhere(ring: TrainingRing, config: TrainingConfig, data: Data) -> Learner:
    # Ranks start from different parameters on purpose: a broadcast that fails silently would show in the fingerprints.
    seed_rng(config.seed, ring.rank)
    learner = Learner(config, data, build_model(config, data), size=ring.size)
    await ring.broadcast(learner.tensors())
    return learner


class Training:
    """Training of one rank, from its first step to its result."""

    def __init__(
        self,
        ring: TrainingRing,
        config: TrainingConfig,
        learner: Learner,
        course: Course,
        settings: ResumeSettings,
        start: Position,
        tell: Callable[[Any], None],
        *,
        stop: StopRequest,
        clock: Callable[[], float],
    ) -> None:
        self._ring, self._config, self._learner, self._tell = ring, config, learner, tell
        self._course, self._settings = course, settings
        self._first_step, self._position = start.step + 1, start
        self._evaluated: Evaluation | None = None
        self._overlaps = len(learner.buckets) > 1 if config.overlap == "auto" else config.overlap
        self.exchange: GradientExchange = (Overlapped if self._overlaps else Plain)(ring, learner.buckets)
        self._journal = StepJournal(tell, ring.statistics)
        self._watch = Stopwatch(clock)
        self._replicas = ReplicaCheck(ring, learner, every_steps=config.check_every_steps, first_step=self._first_step)
        self._agreement = StopAgreement(
            ring,
            seconds=lambda: self._watch.seconds,
            stop=stop,
            limit=config.seconds,
            first_step=self._first_step,
        )

    def plan(self) -> TrainingPlan:
        buckets, data = self._learner.buckets, self._learner.data
        return TrainingPlan(
            parameters=sum(bucket.parameters.numel() for bucket in buckets),
            gradient_bytes=sum(bucket.nbytes for bucket in buckets),
            buckets=len(buckets),
            overlapped=self._overlaps,
            samples=len(data.train),
            test_samples=len(data.test),
            steps_per_epoch=self._course.steps_per_epoch,
            first_step=self._first_step,
            last_step=self._course.last_step,
            seconds=self._config.seconds,
        )

    async def run(self, checkpoints: Checkpoints | None) -> Result:
        every = self._config.evaluate_every_steps
        with self._watch.running():
            for position, share in self._course.after(self._position):
                await self._step(position, share)
                if self._replicas.is_due(position.step):
                    with self._journal.paused():  # its time counts: it is a part of training
                        await self._replicas.compare(position.step)
                if self._agreement.is_due(position.step) and await self._agree_to_stop():
                    break
                if checkpoints is not None and checkpoints.is_due(position.step):
                    with self._watch.paused(), self._journal.paused():
                        await self._save(checkpoints)
                if every is not None and position.step % every == 0:
                    with self._watch.paused(), self._journal.paused():
                        await self._evaluate()
        self._journal.tell()
        traffic = await agreed_traffic(self._ring, self._journal.traffic())  # what follows is not part of the training
        await self._replicas.compare(self._position.step)
        if checkpoints is not None:
            await self._save(checkpoints)
        last = self._evaluated
        return self._result(traffic, last if last and last.step == self._position.step else await self._evaluate())

    async def _step(self, position: Position, share: SampleShare) -> None:
        network, hidden = self.exchange.network_seconds, self.exchange.hidden_seconds
        learning_rate = learning_rate_at(self._config, position.step, self._course.last_step)
        loss = await self.exchange.average(lambda completes: self._learner.backward(share, completes))
        settled = await self._settle(position.step, share)
        self._learner.optimizer.step(learning_rate)
        self._position = position
        step = TrainingStep(
            number=position.step,
            epoch=position.epoch,
            seconds=self._watch.seconds,
            loss=loss * settled.loss_scale / max(share.samples, 1),
            samples=share.samples,
            learning_rate=learning_rate,
            network_seconds=self.exchange.network_seconds - network,
            hidden_seconds=self.exchange.hidden_seconds - hidden,
            gradient_norm=settled.gradient_norm,
        )
        self._journal.enter(step, batches=len(share.batches) if share.samples else 0)

    async def _settle(self, step: int, share: SampleShare) -> Settled:
        if not self._learner.needs_notes:
            return Settled()
        note, started = self._learner.note(self._ring.rank), time.perf_counter()
        notes = await self._ring.all_gather(note)
        self.exchange.network_seconds += time.perf_counter() - started
        return self._learner.settle(notes, share, step=step)

    async def _agree_to_stop(self) -> bool:
        self._journal.tell()
        return await self._agreement.ask(self._position.step)

    async def _save(self, checkpoints: Checkpoints) -> None:
        await self._replicas.compare(self._position.step)
        await checkpoints.save(self._ring, asdict(self._settings), self._learner, self._position)

    async def _evaluate(self) -> Evaluation:
        loss, accuracy = await evaluate(self._ring, self._learner)
        self._evaluated = Evaluation(self._position.step, self._watch.seconds, loss, accuracy)
        self._tell(self._evaluated)
        return self._evaluated

    def _result(self, traffic: Traffic, last: Evaluation) -> Result:
        return Result(
            steps=self._journal.steps,
            batches=self._journal.batches,
            epochs=self._position.step / self._course.steps_per_epoch,
            samples=self._journal.samples,
            loss=self._journal.loss,
            test_loss=last.loss,
            test_accuracy=last.accuracy,
            seconds=self._watch.seconds,
            network_seconds=self.exchange.network_seconds,
            hidden_seconds=self.exchange.hidden_seconds,
            bytes_sent=traffic.bytes_sent,
            bytes_received=traffic.bytes_received,
            fingerprint=self._learner.fingerprint(),
            compression_ratio=traffic.compression_ratio,
            codec_seconds=traffic.codec_seconds,
            stopped_by=self._agreement.signal,
        )


class SummingRing(Protocol):
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    async def broadcast(self, tensors: Any, root: int = 0) -> Any: ...
    async def all_gather(self, tensor: Any) -> list[Any]: ...


async def evaluate(ring: SummingRing, learner: Learner) -> tuple[float, float | None]:
    """Loss and accuracy on the held-out samples; the accuracy is None without classes.

    Each rank evaluates its share of the samples, and all get the same totals.
    """
    count = len(learner.data.test)
    buffers = learner.buffers()
    ours = [buffer.clone() for buffer in buffers]
    if buffers:  # all ranks evaluate the model of rank 0, which is the one in checkpoints
        await ring.broadcast(buffers)
    chance = rng_state()
    found = learner.evaluate(range(ring.rank * count // ring.size, (ring.rank + 1) * count // ring.size))
    # Evaluation does not change the training, whatever the model does in it.
    restore_rng(chance)
    for buffer, before in zip(buffers, ours, strict=True):
        buffer.copy_(before)
    everyone = await ring.all_gather(torch.tensor(found, dtype=torch.float64))
    loss, weight, right, judged = map(math.fsum, zip(*(part.tolist() for part in everyone), strict=True))
    nothing = math.nan if count else 0.0  # no target counts, or there are no samples
    return loss / weight if weight else nothing, right / judged if judged else None
