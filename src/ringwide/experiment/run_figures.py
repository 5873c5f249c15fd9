"""From what each node tells of its end to the figures of the whole run."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

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


def totals(results: Mapping[int, Result]) -> Figures:
    """Of all nodes together. What is the same on every node, or a mean, is that and not a sum."""
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
    """How far the nodes lie apart, in everything that is measured."""
    names = [name for name in nodes[0] if name not in NOT_MEASURED] if nodes else []
    columns = {name: [node[name] for node in nodes if node[name] is not None] for name in names}
    return {name: _spread(values) for name, values in columns.items() if values}


def _spread(values: Sequence[float]) -> Figures:
    return {"min": min(values), "mean": sum(values) / len(values), "max": max(values)}
