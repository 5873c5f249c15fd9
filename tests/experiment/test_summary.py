import math

import pytest

from experiment.told import result
from ringwide.errors import RingwideError
from ringwide.experiment.summary import check_equal, remarks, table, totals


def test_the_table_has_a_line_for_each_node_in_order() -> None:
    lines = table({1: result(memory_bytes=208_000_000), 0: result(test_accuracy=None)}).splitlines()
    assert lines[0].split("  ")[0] == "node"
    assert [" ".join(line.split()) for line in lines[1:]] == [
        "0 10 0.2500 – 2.50 1.00 s 50.0 % 4.00 kB 0 B",
        "1 10 0.2500 97.5 % 2.50 1.00 s 50.0 % 4.00 kB 208 MB",
    ]
    assert len({len(line) for line in lines}) == 1


def test_the_table_tells_what_codecs_did_if_there_were_any() -> None:
    lines = table({0: result(compression_ratio=3.938, codec_seconds=0.5), 1: result()}).splitlines()
    assert lines[0].endswith("compressed  in codecs")
    assert [line.split()[-3:] for line in lines[1:]] == [["3.94×", "12.5", "%"], ["1.00×", "0.0", "%"]]
    assert len({len(line) for line in lines}) == 1


def test_totals_are_one_line() -> None:
    nodes = {rank: result(memory_bytes=200_000_000, torch_memory_bytes=150_000_000) for rank in range(2)}
    assert totals(nodes) == (
        "in all: 20 batches, 5.00 batches/s, 2.00 kB/s sent, loss 0.2500, test loss 0.5000, test accuracy 97.5 %,"
        " 400 MB of memory, 300 MB of it torch's libraries"
    )
    assert "accuracy" not in totals({0: result(test_accuracy=None)})


@pytest.mark.parametrize("loss", [0.0, math.nan])
def test_without_a_step_there_is_no_loss(loss: float) -> None:
    done = {0: result(steps=0, batches=0, samples=0, loss=loss)}
    assert " loss –, test loss 0.5000" in totals(done)
    assert table(done).splitlines()[1].split()[2] == "–"


def test_equal_parameters_are_said_to_be_equal() -> None:
    same = {0: result(), 1: result()}
    assert check_equal(same) == "all nodes hold the same parameters, to the bit (aa)"


def test_different_parameters_are_an_error_that_names_the_nodes() -> None:
    with pytest.raises(RingwideError, match="aa on nodes 0, 2; bb on node 1"):
        check_equal({0: result(), 1: result(fingerprint="bb"), 2: result()})


def test_a_remark_of_several_nodes_is_made_once() -> None:
    assert remarks({0: ("small buffer", "hot"), 1: ("small buffer", "small buffer"), 2: ()}) == [
        "nodes 0, 1: small buffer",
        "node 0: hot",
    ]
