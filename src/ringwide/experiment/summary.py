"""Summary of a run: figures of each node and of all nodes together, as numbers and as the table printed at the end."""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ringwide.errors import RingwideError
from ringwide.experiment.report import units
from ringwide.experiment.run_state import Board
from ringwide.training.progress import Result

DERIVED = (
    "steps_per_second",
    "batches_per_second",
    "throughput",
    "network_share",
    "hidden_share",
    "codec_share",
)
NOT_MEASURED = ("rank", "fingerprint", "stopped_by")
SUMMED = (
    "batches",
    "batches_per_second",
    "samples",
    "bytes_sent",
    "bytes_received",
    "throughput",
    "memory_bytes",
    "torch_memory_bytes",
)
Figures = dict[str, Any]


def of_node(rank: int, result: Result) -> Figures:
    return {"rank": rank, **asdict(result), **{name: getattr(result, name) for name in DERIVED}}


def figures_of_all(results: Mapping[int, Result]) -> Figures:
    """Figures of all nodes together: sums, and for losses and ratios the weighted mean."""
    if not results:
        return {}
    nodes = list(results.values())
    samples, sent = sum(node.samples for node in nodes), sum(node.bytes_sent for node in nodes)
    tested = next((node for node in nodes if not math.isnan(node.test_loss)), nodes[0])
    return {
        **{name: sum(getattr(node, name) for node in nodes) for name in SUMMED},
        "compression_ratio": sum(node.compression_ratio * node.bytes_sent for node in nodes) / sent if sent else 1.0,
        "loss": sum(node.loss * node.samples for node in nodes if node.samples) / samples if samples else math.nan,
        "test_loss": tested.test_loss,
        "test_accuracy": tested.test_accuracy,
    }


def spread(nodes: Sequence[Figures]) -> dict[str, Figures]:
    """Minimum, mean and maximum over the nodes of every measured figure."""
    names = [name for name in nodes[0] if name not in NOT_MEASURED] if nodes else []
    columns = {name: [node[name] for node in nodes if node[name] is not None] for name in names}
    return {name: _spread(values) for name, values in columns.items() if values}


def _spread(values: Sequence[float]) -> Figures:
    return {"min": min(values), "mean": sum(values) / len(values), "max": max(values)}


COLUMNS = ("node", "batches", "loss", "test accuracy", "batches/s", "on network", "hidden", "sent", "memory")
CODEC_COLUMNS = ("compressed", "in codecs")
GAP = "  "


def table(results: Mapping[int, Result]) -> str:
    """Table with a line for each node. The columns of codecs appear if one was used."""
    encoded = any(result.codec_seconds for result in results.values())
    rows = [COLUMNS + CODEC_COLUMNS * encoded]
    for rank, result in sorted(results.items()):
        rows.append(_cells(rank, result) + _codec_cells(result) * encoded)
    return "\n".join(aligned(rows))


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines, with right-aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [GAP.join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]


def totals(results: Mapping[int, Result]) -> str:
    found = figures_of_all(results)
    return (
        f"in all: {units.count(found['batches'])} batches, {units.number(found['batches_per_second'])} batches/s,"
        f" {units.speed(found['throughput'])} sent, loss {_loss(found['loss'], found['samples'])},"
        f" test loss {found['test_loss']:.4f}{_accuracy_in_all(found['test_accuracy'])}, {_memory(found)}"
    )


def check_equal(results: Mapping[int, Result]) -> str:
    """Check that all nodes hold the same bits: they made the same steps from the same start."""
    nodes_by_fingerprint: dict[str, list[int]] = {}
    for rank, result in sorted(results.items()):
        nodes_by_fingerprint.setdefault(result.fingerprint, []).append(rank)
    if len(nodes_by_fingerprint) > 1:
        groups = "; ".join(f"{digest} on {_nodes(ranks)}" for digest, ranks in nodes_by_fingerprint.items())
        raise RingwideError(f"the nodes hold different parameters: {groups}")
    return f"all nodes hold the same parameters, to the bit ({next(iter(nodes_by_fingerprint))})"


def warn_of_losses(board: Board) -> None:
    """Warn of losses that are not finite, even with logging: silent: the trained model may be worthless."""
    if board.first_not_finite is not None:
        print(f"ringwide: warning: the loss is not finite, first in step {board.first_not_finite}", file=sys.stderr)


def remarks(errors: Mapping[int, tuple[str, ...]]) -> list[str]:
    """Lines that nodes wrote to standard error, each once, with the ranks that wrote it."""
    speakers: dict[str, list[int]] = {}
    for rank, lines in sorted(errors.items()):
        for line in dict.fromkeys(lines):
            speakers.setdefault(line, []).append(rank)
    return [f"{_nodes(ranks)}: {line}" for line, ranks in speakers.items()]


def _cells(rank: int, result: Result) -> tuple[str, ...]:
    return (
        str(rank),
        units.count(result.batches),
        _loss(result.loss, result.samples),
        units.share(result.test_accuracy),
        units.number(result.batches_per_second),
        units.duration(result.network_seconds),
        units.share(result.hidden_share),
        units.size(result.bytes_sent),
        units.size(result.memory_bytes),
    )


def _loss(loss: float, samples: int) -> str:
    """Loss, or a dash without samples: a finished run that is resumed makes no step."""
    return f"{loss:.4f}" if samples else units.MISSING


def _codec_cells(result: Result) -> tuple[str, ...]:
    return units.ratio(result.compression_ratio), units.share(result.codec_share)


def _accuracy_in_all(accuracy: float | None) -> str:
    return "" if accuracy is None else f", test accuracy {units.share(accuracy)}"


def _memory(found: Figures) -> str:
    memory, libraries = units.size(found["memory_bytes"]), units.size(found["torch_memory_bytes"])
    return f"{memory} of memory, {libraries} of it torch's libraries"


def _nodes(ranks: list[int]) -> str:
    return f"node{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
