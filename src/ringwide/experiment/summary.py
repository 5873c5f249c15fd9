"""What came out of it, node by node."""

from collections.abc import Mapping

from ringwide.errors import RingwideError
from ringwide.training.progress import Result

COLUMNS = "{:>4}  {:>8}  {:>13}  {:>8}  {:>10}"
CODEC_COLUMNS = "  {:>10}  {:>9}"


def table(results: Mapping[int, Result]) -> str:
    """One line a node. What codecs did and took is told where there were any."""
    encoded = any(result.codec_seconds for result in results.values())
    head = COLUMNS.format("node", "loss", "test accuracy", "steps/s", "on network")
    lines = [head + CODEC_COLUMNS.format("compressed", "in codecs") if encoded else head]
    for rank, result in sorted(results.items()):
        lines.append(_line(rank, result) + (_codec_columns(result) if encoded else ""))
    return "\n".join(lines)


def check_equal(results: Mapping[int, Result]) -> str:
    """Every node made the same steps from the same start, so anything but equal bits is a wrong number."""
    nodes_by_fingerprint: dict[str, list[int]] = {}
    for rank, result in sorted(results.items()):
        nodes_by_fingerprint.setdefault(result.fingerprint, []).append(rank)
    if len(nodes_by_fingerprint) > 1:
        groups = "; ".join(f"{digest} on {_nodes(ranks)}" for digest, ranks in nodes_by_fingerprint.items())
        raise RingwideError(f"the nodes hold different parameters: {groups}")
    return f"all nodes hold the same parameters, to the bit ({next(iter(nodes_by_fingerprint))})"


def remarks(words: Mapping[int, tuple[str, ...]]) -> list[str]:
    """What nodes said on standard error, each sentence once."""
    speakers: dict[str, list[int]] = {}
    for rank, lines in sorted(words.items()):
        for line in dict.fromkeys(lines):
            speakers.setdefault(line, []).append(rank)
    return [f"{_nodes(ranks)}: {line}" for line, ranks in speakers.items()]


def _line(rank: int, result: Result) -> str:
    return COLUMNS.format(
        rank,
        f"{result.loss:.4f}",
        f"{result.test_accuracy:.1%}",
        f"{result.steps_per_second:.1f}",
        f"{result.network_share:.1%}",
    )


def _codec_columns(result: Result) -> str:
    return CODEC_COLUMNS.format(f"{result.compression_ratio:.2f}x", f"{result.codec_share:.1%}")


def _nodes(ranks: list[int]) -> str:
    return f"node{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
