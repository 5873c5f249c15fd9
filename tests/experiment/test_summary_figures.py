import math

import pytest

from experiment.told import result
from ringwide.experiment.summary import figures_of_all, of_node, spread


def test_a_node_has_what_it_told_and_what_follows_from_it() -> None:
    node = of_node(3, result(codec_seconds=2.0))
    assert (node["rank"], node["batches"], node["fingerprint"]) == (3, 10, "aa")
    assert (node["steps_per_second"], node["batches_per_second"], node["throughput"]) == (2.5, 2.5, 1000.0)
    assert (node["network_share"], node["hidden_share"], node["codec_share"]) == (0.25, 0.5, 0.5)


def test_totals_add_up_what_adds_up() -> None:
    both = figures_of_all(
        {
            0: result(loss=1.0, samples=100, memory_bytes=10, torch_memory_bytes=7, peak_memory_bytes=20),
            1: result(loss=2.0, samples=300, memory_bytes=30, torch_memory_bytes=8, peak_memory_bytes=40),
        }
    )
    assert (both["batches"], both["samples"], both["bytes_sent"], both["bytes_received"]) == (20, 400, 8000, 8000)
    assert (both["batches_per_second"], both["throughput"]) == (5.0, 2000.0)
    assert (both["memory_bytes"], both["torch_memory_bytes"]) == (40, 15)
    assert "peak_memory_bytes" not in both  # shared pages would count several times
    assert both["loss"] == 1.75
    assert (both["test_loss"], both["test_accuracy"]) == (0.5, 0.975)


def test_the_ratio_of_all_is_that_of_all_bytes() -> None:
    both = {0: result(compression_ratio=4.0, bytes_sent=100), 1: result(compression_ratio=1.0, bytes_sent=300)}
    assert figures_of_all(both)["compression_ratio"] == 700 / 400
    assert figures_of_all({0: result(bytes_sent=0)})["compression_ratio"] == 1.0


def test_a_loss_that_is_no_number_is_not_hidden_by_the_others() -> None:
    assert math.isnan(figures_of_all({0: result(), 1: result(loss=math.nan)})["loss"])
    assert figures_of_all({0: result(), 1: result(loss=math.nan, samples=0)})["loss"] == 0.25


def test_the_spread_is_of_everything_that_is_measured() -> None:
    nodes = [of_node(rank, result(batches=batches, test_accuracy=None)) for rank, batches in enumerate([10, 40, 70])]
    found = spread(nodes)
    assert found["batches"] == {"min": 10, "mean": 40, "max": 70}
    assert found["network_share"] == pytest.approx({"min": 0.25, "mean": 0.25, "max": 0.25})
    assert not {"rank", "fingerprint", "stopped_by", "test_accuracy"} & found.keys()


def test_no_nodes_have_no_figures() -> None:
    assert figures_of_all({}) == {}
    assert spread([]) == {}
