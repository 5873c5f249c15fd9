from dataclasses import replace

import pytest

from ringwide.errors import RingwideError
from ringwide.experiment.summary import check_equal, remarks, table
from ringwide.training.progress import Result


def result(fingerprint: str = "aa") -> Result:
    return Result(
        steps=50, loss=0.12345, test_accuracy=0.975, seconds=4.0, network_seconds=1.0, fingerprint=fingerprint
    )


def test_the_table_has_a_line_for_each_node_in_order() -> None:
    lines = table({1: result(), 0: result()}).splitlines()
    assert [line.split() for line in lines[1:]] == [
        ["0", "0.1235", "97.5%", "12.5", "25.0%"],
        ["1", "0.1235", "97.5%", "12.5", "25.0%"],
    ]
    assert len({len(line) for line in lines}) == 1


def test_the_table_tells_what_codecs_did_if_there_were_any() -> None:
    busy, idle = replace(result(), compression_ratio=3.938, codec_seconds=0.5), result()
    lines = table({0: busy, 1: idle}).splitlines()
    assert lines[0].endswith("compressed  in codecs")
    assert [line.split()[-2:] for line in lines[1:]] == [["3.94x", "12.5%"], ["1.00x", "0.0%"]]
    assert len({len(line) for line in lines}) == 1


def test_equal_parameters_are_said_to_be_equal() -> None:
    assert check_equal({0: result("aa"), 1: result("aa")}) == "all nodes hold the same parameters, to the bit (aa)"


def test_different_parameters_are_an_error_that_names_the_nodes() -> None:
    with pytest.raises(RingwideError, match="aa on nodes 0, 2; bb on node 1"):
        check_equal({0: result("aa"), 1: result("bb"), 2: result("aa")})


def test_a_remark_of_several_nodes_is_made_once() -> None:
    assert remarks({0: ("small buffer", "hot"), 1: ("small buffer", "small buffer"), 2: ()}) == [
        "nodes 0, 1: small buffer",
        "node 0: hot",
    ]
