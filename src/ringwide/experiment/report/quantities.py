"""Figures of a report: for each its name, its format, and whether it adds up over nodes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from ringwide.experiment.report import units
from ringwide.experiment.report.run_files import Figures, NodeResult, Run, number
from ringwide.experiment.report.units import Form


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of results.json and how it is shown."""

    key: str  # in results.json
    head: str  # heading of its column
    form: Form
    adds_up: bool = False

    def of(self, figures: Figures) -> str:
        return self.form(figures.get(self.key))


BATCHES = Figure("batches", "batches", units.count, adds_up=True)
PACE = Figure("batches_per_second", "batches/s", units.number, adds_up=True)
SAMPLES = Figure("samples", "samples", units.count, adds_up=True)
EPOCHS = Figure("epochs", "epochs", units.number)
LOSS = Figure("loss", "loss", units.loss)
TEST_LOSS = Figure("test_loss", "test loss", units.loss)
ACCURACY = Figure("test_accuracy", "test accuracy", units.share)
SECONDS = Figure("seconds", "training time", units.duration)
NETWORK = Figure("network_seconds", "network time", units.duration)
NETWORK_SHARE = Figure("network_share", "of training time", units.share)
HIDDEN = Figure("hidden_share", "of it hidden", units.share)
CODEC_TIME = Figure("codec_seconds", "codec time", units.duration)
RATIO = Figure("compression_ratio", "compression", units.ratio)
SENT = Figure("bytes_sent", "sent", units.size, adds_up=True)
RECEIVED = Figure("bytes_received", "received", units.size, adds_up=True)
THROUGHPUT = Figure("throughput", "throughput", units.speed, adds_up=True)
MEMORY = Figure("memory_bytes", "memory", units.size, adds_up=True)
TORCH_MEMORY = Figure("torch_memory_bytes", "of it torch's libraries", units.size, adds_up=True)
# Resident memory counts shared pages once for each process, so its sum would mean nothing.
PEAK_MEMORY = Figure("peak_memory_bytes", "peak resident", units.size)

IN_ALL = (BATCHES, PACE, LOSS, ACCURACY, THROUGHPUT, NETWORK, HIDDEN, RATIO, MEMORY)
KEY_OF_REFERENCE = {"memory": MEMORY.key}  # the other keys have the same name


@dataclass(frozen=True, slots=True)
class Reference:
    """Figures of another system, shown next to those of a run."""

    name: str
    figures: Figures


def in_all(run: Run) -> Figures:
    """Figures of a whole run: its totals, and means over nodes for figures that do not add up."""
    means = {figure.key: mean_of(run.nodes, figure) for figure in (EPOCHS, SECONDS, NETWORK, CODEC_TIME)}
    network, hidden = mean_of(run.nodes, NETWORK), mean(known(run.nodes, "hidden_seconds"))
    return {
        **means,
        HIDDEN.key: hidden / network if network and hidden is not None else None,
        NETWORK_SHARE.key: mean_of(run.nodes, NETWORK_SHARE),
        **run.totals,
    }


def mean_of(nodes: Sequence[NodeResult], figure: Figure) -> float | None:
    return mean(known(nodes, figure.key))


def known(nodes: Sequence[NodeResult], key: str) -> list[float]:
    return [value for node in nodes if (value := node.figures.get(key)) is not None]


def mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def encoded(nodes: Sequence[NodeResult]) -> bool:
    return any(value > 0 for value in known(nodes, CODEC_TIME.key))


def references(run: Run) -> tuple[Reference, ...]:
    beside = run.setting("report.beside")
    items = beside if isinstance(beside, list) else []
    return tuple(_reference(item) for item in items if isinstance(item, Mapping))


def _reference(item: Mapping[str, object]) -> Reference:
    figures = {KEY_OF_REFERENCE.get(key, key): number(value) for key, value in item.items() if key != "name"}
    return Reference(str(item.get("name", "")), figures)
