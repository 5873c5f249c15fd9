import copy

import pytest
import torch
from torch import Tensor

import ringwide
from local_ring import on_every_rank
from ringwide.training.learner import as_bits

MADE = {
    "booleans": torch.tensor([True, False, True]),
    "complex": torch.view_as_complex(torch.arange(6.0).view(3, 2)),
    "wide complex": torch.view_as_complex(torch.arange(6, dtype=torch.float64).view(3, 2)),
    "transposed": torch.arange(12.0).view(3, 4).t(),
    "expanded": torch.arange(3).expand(2, 3),
    "expanded twice": torch.arange(3).view(3, 1).expand(2, 3, 4),
    "one number": torch.tensor(7),
    "nothing": torch.empty(0, 4),
    "not a number": torch.tensor([torch.nan, -0.0]),
    "small": torch.arange(3).to(torch.float8_e5m2),
    "unsigned": torch.arange(3).to(torch.uint16),
}


@pytest.mark.parametrize("name", MADE)
def test_what_is_written_into_the_bits_is_written_into_the_tensor(name: str) -> None:
    source, target = MADE[name], copy.deepcopy(MADE[name])
    assert target.stride() == source.stride()
    as_bits(target).zero_()
    assert not target.to(torch.complex128).any()
    as_bits(target).copy_(as_bits(source))
    torch.testing.assert_close(target.to(torch.complex128), source.to(torch.complex128), rtol=0, atol=0, equal_nan=True)


async def test_a_ring_carries_them_all() -> None:
    async def act(ring: ringwide.Ring) -> list[Tensor]:
        ours = [as_bits(tensor).clone() if ring.rank == 0 else as_bits(tensor) * 0 for tensor in MADE.values()]
        return await ring.broadcast(ours)

    for found in await on_every_rank(2, act):
        for name, tensor, bits in zip(MADE, MADE.values(), found, strict=True):
            assert torch.equal(bits, as_bits(tensor)), name
