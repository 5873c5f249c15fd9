"""Nodes of an experiment as tasks of this process, over real connections."""

from pathlib import Path
from typing import Any

import yaml
from tests.local_ring import own_ports

from ringwide.experiment.find_peers import ListedPeers, write_peers
from ringwide.experiment.stop_signals import NodeStop
from ringwide.experiment.sweep import Variant, load_variants
from ringwide.experiment.worker import Worker

TRAINING = {"hidden_sizes": [8], "batch_size": 300, "steps": 3}


def experiment(directory: Path, nodes: int = 1, **keys: Any) -> list[Variant]:
    """The variants of an experiment that is written there, with everything it leaves behind."""
    given = {"name": "t", "nodes": nodes, "training": TRAINING, **keys}
    given["report"] = {"directory": str(directory / "runs"), "html": False}
    (directory / "e.yaml").write_text(yaml.safe_dump(given))
    write_peers(directory / "peers.txt", own_ports(nodes))
    return load_variants(directory / "e.yaml", [])


def worker_at(directory: Path, rank: int = 0, stopping: NodeStop | None = None) -> Worker:
    return Worker(rank, ListedPeers(str(directory / "peers.txt")), directory / "e.yaml", stopping or NodeStop())
