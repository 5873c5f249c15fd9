"""torch.compile with this backend: the numbers are those of eager training."""

import pytest
from tests.torch_backend.compiled import COMPILERS
from tests.torch_backend.sets import Kind, Nursery


@pytest.mark.system
@pytest.mark.timeout(200)
def test_compiled_training_gives_the_numbers_of_eager_training(nursery: Nursery) -> None:
    ended = nursery.run(Kind("ringwide", 2, "environment"), act="compile_training", arguments={}, seconds=150)
    expected = {f"{compiler}: {what}": True for compiler in COMPILERS for what in ("model", "step", "collectives")}
    for rank in range(2):
        assert ended.result(rank) == expected
    assert ended.codes == [0, 0], ended.logs
